"""Which data, and how much of it: the `[data]` table of a recipe."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from cos2p.data.augment import Change
from cos2p.data.examples import Normalize
from cos2p.units import parse_bytes

SOURCES = ("digits", "idx", "npz", "parquet", "csv", "jsonl", "text", "folder", "hub", "bundle")
ENTRY_POINTS = "cos2p.data"
"""Group of the entry points that add sources."""
TABLES = ("parquet", "csv", "jsonl", "hub")
"""Sources with columns."""
Task = Literal["classification", "language-modeling", "instruction"]
Crop = Literal["center", "stretch"]

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=0)]


class DataConfig(BaseModel):
    """A data set by its source, its files and columns, and the share of it that is used.

    >>> DataConfig().source
    'digits'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(
        default="digits",
        description="Where the samples come from. digits: 1,797 grey 8x8 images that cos2p brings along, no "
        "files needed; idx: the MNIST format, .gz or plain; npz: numpy arrays; parquet, csv (.tsv: by tabs), jsonl (a "
        "JSON object a line): tables with images or texts, csv and jsonl also as .gz; text: plain text files "
        "for language modelling, packed into sequences of `max_tokens`; folder: one image per file, "
        "path/<class>/<file>, with train, validation and test folders above the classes if there are such; hub: "
        "a data set by its Hugging Face name (needs cos2p[hub]); bundle: the file `path`, which a run whose data "
        "came from Python has written. Other names are those of installed entry points `cos2p.data`.",
    )
    path: str = Field(
        default="",
        description="Folder that holds the files; for `hub` the name of the data set, "
        "or NAME:CONFIGURATION. ~ and ${VAR} are expanded. "
        "A relative path is looked up in the current folder, then in the folder $COS2P_DATA.",
    )
    train: str = Field(
        default="",
        description="Training file below `path`; parquet, csv, jsonl and text take a pattern such as train-*.parquet. "
        "For idx the image file. For folder and hub the name of the split (empty: train).",
    )
    validation: str = Field(
        default="",
        description="Validation file below `path`, or split. Empty: `validation_fraction` of the training samples.",
    )
    test: str = Field(
        default="",
        description="Test file below `path`, or split. Empty: `test_fraction` of the training samples.",
    )
    classes: str | tuple[str, ...] = Field(
        default="",
        description="Class names, name n for label n from 0: a list, or a file below `path` with one on each line. "
        "Empty: the names are taken from the labels.",
    )
    test_classes: tuple[str, ...] = Field(
        default=(), description="The names in the order of the test file, where that counts its classes differently."
    )

    task: Task = Field(
        default="classification",
        description="classification: one label per sample; language-modeling: the next token, from texts alone; "
        "instruction: a text whose answer is the next tokens, learned and evaluated by the answer alone.",
    )
    prompt: str = Field(
        default="{text} Answer:",
        description="instruction: what stands before an answer, with {text} for the text. Behind it come a space and "
        "the answer: the name of the text's class (`classes`, or the label itself), or `answer_column`. "
        "Too long ones lose their beginning.",
    )
    answer_column: str = Field(default="", description="instruction: the answers. Empty: the names of the labels.")
    messages_column: str = Field(
        default="",
        description="instruction, jsonl, parquet, hub: chats, in place of `text_column`: lists of messages with `role` "
        "(system, user, assistant) and `content`. What the assistant says is learned, every turn of it.",
    )
    image_column: str = Field(
        default="image",
        description="parquet, csv, jsonl, hub, npz: the images. Encoded bytes (PNG, JPEG ...), in csv and "
        "jsonl as base64; or the name of an image file next to the table. Not read when `text_column` is set.",
    )
    text_column: str = Field(
        default="", description="parquet, csv, jsonl, hub: the texts. Empty: the samples are images."
    )
    label_column: str = Field(
        default="label", description="parquet, csv, jsonl, hub, npz: the labels, integers from 0 or class names."
    )
    group_column: str = Field(
        default="",
        description="parquet, csv, jsonl, hub: who a sample belongs to (writer, speaker), for the natural partition. "
        "Empty: nobody.",
    )

    image_size: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=0, description="Edge of the square images in pixels, 8 to 512. 0: as they are, all of one size."
    )
    crop: Crop = Field(
        default="center",
        description="How an image becomes `image_size`. center: scale the shorter edge, cut the middle out; "
        "stretch: scale both edges, nothing is cut but proportions change.",
    )
    channels: Literal[1, 3] = Field(default=1, description="1: grey; 3: RGB. Images are converted.")
    mean: tuple[float, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=3,
        description="Mean to subtract from pixels in 0..1: one number, or one per channel. Empty: what the "
        "checkpoint's `preprocessor_config.json` says, else 0.5.",
    )
    std: tuple[Annotated[float, Field(gt=0.0)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=3,
        description="Standard deviation to divide by, above 0: one number, or one per channel. Empty: likewise.",
    )

    skip_bad: bool = Field(
        default=False,
        description="parquet, csv, jsonl, hub, folder: leave images out that cannot be read, and say how many. "
        "false: name them and stop.",
    )
    cache: Annotated[int, BeforeValidator(parse_bytes)] = Field(
        default=2_000_000_000,
        description="parquet, csv, jsonl, hub, folder: memory for decoded images of each process, such as 500MB or "
        "8GB; a run has one process more than `run.workers`. What does not fit is decoded when a batch asks for it. "
        "The run is the same, bit for bit. Images of a table that do not fit wait, encoded, in a file below "
        "~/.cache/cos2p.",
    )

    tokenizer: str = Field(
        default="auto",
        description="Path of a tokenizer.json, or of a folder that holds one (looked up like `path`); `bytes`: one "
        "token per byte, 259 tokens, no file needed; `auto`: the one next to `model.pretrained`, bytes for a fresh "
        "model.",
    )
    max_tokens: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        default=128, description="Tokens per text, 16 to 2048: longer texts are cut, shorter ones cost what they are."
    )

    train_samples: Count = Field(
        default=0,
        description="Training samples to use, the validation share included; drawn in proportion to the classes. "
        "0: all.",
    )
    test_samples: Count = Field(default=0, description="Test samples to use, drawn likewise. 0: all.")
    validation_fraction: Fraction = Field(
        default=0.1,
        description="Share of the training samples kept for validation, 0 to 0.3, in proportion to the classes. "
        "Not used when `validation` is given. Never taken from the test set.",
    )
    test_fraction: Fraction = Field(
        default=0.2,
        description="Share of all samples kept for testing when the source has no test set, 0.1 to 0.3.",
    )

    augment: tuple[Change, ...] = Field(
        default=(),
        description="What happens to training images. pad: shift by up to four pixels, black where nothing is (small "
        "images); scale: cut a square of 35 to 100 % of the area out and bring it back to size (photographs); flip: "
        "mirror half of the images, left to right (not digits). Features behind a frozen prefix cannot be kept then.",
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> DataConfig:
        if self.source not in SOURCES:
            return self._registered()
        if self.source not in ("digits", "folder", "hub", "bundle") and not self.train:
            raise ValueError(f"source {self.source!r} needs the file name of the training samples in `train`")
        needed = {"folder": "the image folder", "hub": "the name of the data set", "bundle": "the file"}
        if self.source in needed and not self.path:
            what = needed[self.source]
            raise ValueError(f"source {self.source!r} needs {what} in `path`")
        if self.text_column and self.source not in TABLES:
            raise ValueError(f"`text_column` is for {', '.join(TABLES)}; source {self.source!r} has no such columns")
        if self.source == "text" and self.task != "language-modeling":
            raise ValueError("source 'text' has no labels; set task = 'language-modeling'")
        if self.messages_column and (self.task != "instruction" or self.text_column or self.answer_column):
            raise ValueError(
                "`messages_column` is for task 'instruction', and stands in the place of `text_column` and "
                "`answer_column`"
            )
        if self.messages_column and self.source not in ("jsonl", "parquet", "hub"):
            raise ValueError(f"`messages_column` is for jsonl, parquet and hub; {self.source!r} has no lists")
        if self.task != "classification" and not self.is_text:
            raise ValueError(f"task {self.task!r} needs the column of the texts in `text_column`")
        if self.task == "instruction" and "{text}" not in self.prompt:
            raise ValueError(f"`prompt` is {self.prompt!r}; it needs {{text}} where the text goes")
        if self.answer_column and self.task != "instruction":
            raise ValueError(f"`answer_column` is for task 'instruction', not {self.task!r}")
        if self.augment and self.is_text:
            raise ValueError("`augment` is for images; take it out for texts")
        if {"pad", "scale"} <= set(self.augment):
            raise ValueError("`augment` has both pad and scale; give one of them")
        names = () if isinstance(self.classes, str) else self.classes
        if len(set(names)) < len(names) or (self.test_classes and sorted(self.test_classes) != sorted(names)):
            raise ValueError("`classes` is a list of names, each once, and `test_classes` the same names")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in (1, self.channels):
                raise ValueError(
                    f"`{name}` has {len(values)} numbers for {self.channels} channel(s); "
                    "give one number, or one per channel"
                )
        return self

    def _registered(self) -> DataConfig:
        """A registered source knows what the other fields mean."""
        names = sorted(entry_points(group=ENTRY_POINTS).names)
        if self.source not in names:
            known = ", ".join((*SOURCES, *names))
            raise ValueError(
                f"source {self.source!r} is not known; known: {known}; others are installed as entry points"
            )
        return self

    @property
    def has_labels(self) -> bool:
        """Whether samples have classes."""
        named = not (self.answer_column or self.messages_column)
        return self.task == "classification" or (self.task == "instruction" and named)

    @property
    def is_text(self) -> bool:
        """Whether samples are texts."""
        return bool(self.text_column or self.messages_column) or self.source == "text"

    @property
    def normalize(self) -> Normalize:
        """For `Examples.batch`."""
        plain = Normalize()
        return Normalize(self.mean or plain.mean, self.std or plain.std)
