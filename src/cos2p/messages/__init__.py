"""`Task` (an `Order` with its tensors) and `Update`: what travels between server and device. Never pickle."""

from cos2p.messages.task import (
    CachedParts,
    LabelSkew,
    Order,
    Piece,
    Precision,
    Task,
    TaskReader,
    Update,
    Wire,
    load_tensors,
    pieces_of,
    tensor_bytes,
    write_task,
)

__all__ = [
    "CachedParts",
    "LabelSkew",
    "Order",
    "Piece",
    "Precision",
    "Task",
    "TaskReader",
    "Update",
    "Wire",
    "load_tensors",
    "pieces_of",
    "tensor_bytes",
    "write_task",
]
