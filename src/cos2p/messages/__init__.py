"""`Task` (an `Order` with its tensors) and `Update`: what travels between server and device. Never pickle."""

from cos2p.messages.task import CachedParts as CachedParts
from cos2p.messages.task import LabelSkew as LabelSkew
from cos2p.messages.task import Order as Order
from cos2p.messages.task import Piece as Piece
from cos2p.messages.task import Precision as Precision
from cos2p.messages.task import Task as Task
from cos2p.messages.task import Update as Update
from cos2p.messages.task import Wire as Wire
from cos2p.messages.task import load_tensors as load_tensors
from cos2p.messages.task import pieces_of as pieces_of
from cos2p.messages.task import tensor_bytes as tensor_bytes
from cos2p.messages.task import write_task as write_task
