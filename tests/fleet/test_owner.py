"""What a device refuses in its owner's name, what it may spend, and what of its troubles leaves it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cos2p.errors
from cos2p.aggregation.privacy.account import epsilon_of, multiplier_for
from cos2p.aggregation.settings import PrivacySettings
from cos2p.data import paths
from cos2p.errors import ConfigError, Cos2pError, DataError, OwnerRefused
from cos2p.fleet.device.jobs import Setup, outward
from cos2p.fleet.device.owner import TEMPLATE, OwnerFile, Spend, Spending, remembered_file
from cos2p.fleet.device.shards import own_shard
from cos2p.fleet.device.task_check import PrivacyAccount, check_task
from cos2p.fleet.device.worker import _Device
from cos2p.memory.tasks import make_order
from cos2p.messages import Order, Wire
from cos2p.methods import Call, methods
from cos2p.models.config import ModelConfig
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup, first_weights, private_settings
from cos2p.training.client_cache import CacheMiss, ClientCache
from tests.fleet.lab import small_recipe
from tests.models.test_hub_export import word_tokenizer

CONFIG = build_run_setup(small_recipe(1)).config
CLASSES = [str(n) for n in range(10)]


def recipe_for(train: str, **changes: object) -> Recipe:
    plain = {"data__source": "npz", "data__train": train, "data__train_samples": 0, "data__test_samples": 0}
    return small_recipe(1, **(plain | changes))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device's folder, and secrets around it."""
    folder = tmp_path / "own"
    folder.mkdir()
    images, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 10
    np.savez(folder / "train.npz", image=images, label=labels)
    np.savez(folder / "odd.npz", patient=images, diagnosis=labels)
    np.savez(tmp_path / "secret.npz", image=images, label=labels)
    (folder / "link.npz").symlink_to(tmp_path / "secret.npz")
    (folder / "up").symlink_to(tmp_path)
    monkeypatch.setenv("CANARY", str(tmp_path / "secret.npz"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


@pytest.mark.parametrize(
    "train", ["${CANARY}", "$CANARY", "~/secret.npz", "../secret.npz", "/SECRET", "link.npz", "up/secret.npz",
              "link*.npz", "sub/../../secret.npz"],
)  # fmt: skip
def test_no_name_of_a_recipe_leads_out_of_the_folder(own: Path, train: str) -> None:
    train = train.replace("/SECRET", str(own.parent / "secret.npz"))
    source = {"data__source": "parquet"} if "*" in train else {}
    with paths.confined_to(own), pytest.raises(OwnerRefused) as caught:
        own_shard(recipe_for(train, **source), str(own), CLASSES, CONFIG)
    reported = outward(caught.value)
    assert reported.startswith("owner: ")
    for secret in (str(own.parent), "secret", "CANARY", "link"):
        assert secret not in reported
    assert len(own_shard(recipe_for("train.npz"), str(own), CLASSES, CONFIG).train) == 48  # what is inside is read


def test_a_tokenizer_and_class_names_are_looked_up_inside_too(own: Path) -> None:
    (own / "texts.csv").write_text("text,label\n" + "\n".join(f"word {n},{n % 10}" for n in range(60)))
    texts = {"data__source": "csv", "data__text_column": "text", "model__size": "bert-nano"}
    for changes in (
        {"data__tokenizer": str(own.parent)},
        {"model__pretrained": str(own.parent)},
        {"model__pretrained": "someone/model"},  # would be fetched
        {"data__classes": "../secret.npz"},
    ):
        recipe = recipe_for("texts.csv", **texts, **changes)
        with paths.confined_to(own), pytest.raises((OwnerRefused, DataError)) as caught:
            own_shard(recipe, str(own), CLASSES, CONFIG)
        assert "no tokenizer.json" in str(caught.value) or isinstance(caught.value, OwnerRefused)


def test_a_device_needs_the_tokenizer_in_its_folder_and_no_test_file(own: Path) -> None:
    (own / "texts.csv").write_text("text,label\n" + "\n".join(f"word {n},{n % 10}" for n in range(60)))
    word_tokenizer(own)
    texts = {"data__source": "csv", "data__text_column": "text", "model__size": "bert-nano"}
    recipe = recipe_for("texts.csv", data__test="elsewhere.csv", model__pretrained="/server/MiniLM", **texts)
    config = replace(CONFIG, family="bert", max_tokens=128, vocab=300)
    with paths.confined_to(own):
        shard = own_shard(recipe, str(own), CLASSES, config)
    assert len(shard.train) + len(shard.test) == 60


def test_links_inside_an_image_folder_do_not_lead_out(tmp_path: Path) -> None:
    from PIL import Image

    own, outside = tmp_path / "own", tmp_path / "outside"
    for folder in (own / "a", own / "b", outside):
        folder.mkdir(parents=True)
        Image.new("L", (8, 8)).save(folder / "1.png")
    recipe = small_recipe(1, data__source="folder", data__path="x", data__train_samples=0, data__test_samples=0)
    (own / "a" / "2.png").symlink_to(outside / "1.png")
    with paths.confined_to(own), pytest.raises(OwnerRefused):
        own_shard(recipe, str(own), ["a", "b"], CONFIG)
    (own / "a" / "2.png").unlink()
    (own / "c").symlink_to(outside)
    with paths.confined_to(own), pytest.raises(OwnerRefused):
        own_shard(recipe, str(own), ["a", "b", "c"], CONFIG)


@pytest.mark.parametrize("run", ["../../elsewhere", "/tmp/x", "a/b", "", ".", "a.b", "A b"])
def test_no_name_of_a_run_leads_out_of_the_kit(tmp_path: Path, run: str) -> None:
    with pytest.raises(OwnerRefused):
        remembered_file(tmp_path, run)
    assert remembered_file(tmp_path, "fashion-mini-0a1b2c3d").parent == tmp_path / "remembered"


def test_no_name_of_a_part_leads_out_of_the_shelf(tmp_path: Path) -> None:
    (tmp_path / "client_cache").mkdir()
    for name in ("../secret", "/etc/passwd", "a/b"):
        with pytest.raises(CacheMiss):
            ClientCache(tmp_path / "client_cache").get(name)


# ---------------------------------------------------------------- what leaves


@given(st.sampled_from([k for k in vars(cos2p.errors).values() if isinstance(k, type) and issubclass(k, Cos2pError)]),
       st.text(min_size=3))  # fmt: skip
def test_no_word_of_an_error_leaves(kind: type[Cos2pError], secret: str) -> None:
    marked = f"<<{secret}>>"
    assert marked not in outward(kind(f"/home/{marked}/patients.csv has no column {marked}"))


def test_no_counts_leave(own: Path) -> None:
    with paths.confined_to(own), pytest.raises(DataError) as caught:
        own_shard(recipe_for("train.npz"), str(own), ["one", "two"], CONFIG)
    assert outward(caught.value) == (
        "data: its data cannot be used for this run (classes that the run does not know); its own log says more"
    )
    with paths.confined_to(own), pytest.raises(DataError, match="patient") as caught:
        own_shard(recipe_for("odd.npz"), str(own), CLASSES, CONFIG)
    assert outward(caught.value) == "data: its data cannot be used for this run; its own log says more"
    assert outward(OSError(28, "No space left", "/home/ann")).startswith("disk: ")
    assert outward(ValueError("secret")) == "error: it went wrong; its own log says more"


# ---------------------------------------------------------------- the owner's file


def owner(tmp_path: Path, text: str) -> OwnerFile:
    (tmp_path / "owner.toml").write_text(text)
    return OwnerFile.read(tmp_path)


def test_the_file_that_kits_bring_allows_what_no_file_allows(tmp_path: Path) -> None:
    assert owner(tmp_path, TEMPLATE) == OwnerFile() == OwnerFile.read(tmp_path / "none")
    text = "\n".join(line.removeprefix("# ") for line in TEMPLATE.splitlines() if not line.startswith("# Rules"))
    read = owner(tmp_path, text)  # every line that is commented out is one that works
    assert read.spend == Spend(memory=2 * 2**30, disk=10**9, seconds_per_day=3600, bytes_per_day=2 * 10**9, epsilon=8)
    assert read.accept.methods == ("cos2p",)
    assert read.accept.columns == ("text", "label")
    assert read.send.report == "none"


def test_mistakes_in_it_are_named(tmp_path: Path) -> None:
    for text, words in (("[spend]\nmemory = 'x'", "spend.memory"), ("[spnd]", "spnd: there is no such field"),
                        ("[", "not valid TOML")):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            owner(tmp_path, text)


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        ('[accept]\nmethods = ["fedavg"]', "method.name = 'cos2p'"),
        ('[accept.fields]\n"training.epochs" = {max = 0}', "training.epochs = 1"),
        ('[accept.fields]\n"data.source" = ["csv"]', "data.source = 'digits'"),
        ('[accept.fields]\n"fleet.reports" = "full"', "fleet.reports = 'minimal'"),
        ('[accept.fields]\n"fleet.devices.0.batch" = {max = 15}', "fleet.devices.0.batch = 16"),
        ('[accept]\ncolumns = ["text", "topic"]', "data.image_column = 'image'"),
        ('[accept]\ncolumns = ["label", "image"]', ""),
        ('[accept]\nmethods = ["cos2p"]\n[accept.fields]\n"training.epochs" = {min = 1, max = 1}', ""),
    ],
)
def test_a_run_is_refused_by_the_field(tmp_path: Path, rule: str, refused: str) -> None:
    values, word = small_recipe(1).model_dump(mode="json"), owner(tmp_path, rule)
    if not refused:
        word.check_recipe(values)
        return
    with pytest.raises(OwnerRefused) as caught:
        word.check_recipe(values)
    assert outward(caught.value).startswith(
        f"owner: its owner has not allowed what the run asks ({refused} is not accepted)"
    )


def test_a_task_may_not_ask_for_more_than_the_recipe_said(tmp_path: Path) -> None:
    word = owner(tmp_path, '[accept.fields]\n"training.epochs" = {max = 2}')
    word.check_order({"epochs": 2})
    word.check_order({"local": {"epochs": 2}})
    for settings in ({"epochs": 3}, {"local": {"epochs": 3}}):
        with pytest.raises(OwnerRefused, match=r"training\.epochs = 3, in a task"):
            word.check_order(settings)


@pytest.mark.parametrize(
    ("rule", "left_out", "refused"),
    [
        ('[accept]\ncolumns = ["text", "diagnosis"]', ("data", "image_column"), "data.image_column = 'image'"),
        ('[accept.fields]\n"training.epochs" = {min = 100}', ("training", "epochs"), "training.epochs = "),
        ('[accept.fields]\n"method.masks.lr" = {max = 0.0}', ("method", "masks"), "method.masks.lr = "),
    ],
)
def test_what_a_recipe_leaves_out_holds_with_its_default(
    tmp_path: Path, rule: str, left_out: tuple[str, str], refused: str
) -> None:
    """The training process reads the recipe as it will train; a server may send one with fields missing."""
    values = small_recipe(1).model_dump(mode="json")
    values[left_out[0]].pop(left_out[1])
    word, config = owner(tmp_path, rule), CONFIG.to_dict()
    setup = Setup(
        name="dev-1", recipe=values, config=config, classes=[], kit=str(tmp_path), owner=word.model_dump(mode="json")
    )
    answer = _Device(setup).prepare()
    assert refused in answer["public"]
    assert answer["kind"] == "OwnerRefused"


def test_the_smaller_memory_counts(tmp_path: Path) -> None:
    word = owner(tmp_path, '[spend]\nmemory = "1GB"')
    assert [word.smaller_memory(m) for m in (0, 5, 2 * 10**9)] == [10**9, 5, 10**9]
    assert OwnerFile().smaller_memory(0) == 0


def test_a_day_has_so_many_seconds_and_bytes(tmp_path: Path) -> None:
    day = ["2026-01-01"]
    account = Spending(tmp_path, Spend(seconds_per_day=10, bytes_per_day=1000, disk=500), lambda: day[0])
    account.add(seconds=4.0, size=600)
    account = Spending(tmp_path, account.limits, lambda: day[0])  # a restart forgets nothing
    assert account.seconds_left() == 6.0
    account.check_transfer(400)
    with pytest.raises(OwnerRefused, match=r"bytes_per_day: 600 B \+ 401 B of 1.00 kB"):
        account.check_transfer(401)
    with pytest.raises(OwnerRefused, match="disk"):
        account.check_disk(501)
    account.add(seconds=7.0)
    with pytest.raises(OwnerRefused, match="seconds_per_day: all 10 are used"):
        account.check_seconds()
    day[0] = "2026-01-02"
    account.check_seconds()
    account.check_transfer(1000)


def test_without_a_limit_half_of_the_free_disk_is_the_limit(tmp_path: Path) -> None:
    account = Spending(tmp_path, Spend())
    account.check_disk(2**20)
    with pytest.raises(OwnerRefused, match="disk: "):
        account.check_disk(2**50)


def test_an_account_that_is_broken_is_no_way_round_the_limits(tmp_path: Path) -> None:
    (tmp_path / "spent.json").write_text("{")
    with pytest.raises(OwnerRefused, match="delete it"):
        Spending(tmp_path, Spend(bytes_per_day=5)).check_transfer(1)
    (tmp_path / "spent.json").write_text(json.dumps({"day": "x"}))
    with pytest.raises(OwnerRefused):
        Spending(tmp_path, Spend(seconds_per_day=5)).check_seconds()


# ---------------------------------------------------------------- a task, against the recipe that was accepted


def order_of(recipe: Recipe) -> Order:
    """The first task of the recipe's device, as an honest server makes it."""
    run_setup = build_run_setup(recipe)
    method = run_setup.method()
    member = run_setup.context.members["dev-1"]
    call = Call(member, 0, 0, 0, method.initial_weights(first_weights(run_setup.recipe, run_setup.config)))
    return make_order(method, member, method.assign(call))


def look(recipe: Recipe, order: Order, config: ModelConfig = CONFIG) -> None:
    check_task(order, "dev-1", recipe, private_settings(recipe), config)


STATISTICS = {"trainer": "statistics", "quotas": None, "settings": {"depths": [4], "epochs": 1}}
FIXED = {"name": "cos2p", "weighting": "uniform", "masks": {"heads": "fixed", "units": "fixed"}}
LOCAL = {"noise": "local", "multiplier": 2.0, "epsilon": 2.0}


@pytest.mark.parametrize(
    ("recipe", "change", "named"),
    [
        ({}, STATISTICS, "statistics"),
        ({"method__exits": {"start": "means"}}, STATISTICS | {"settings": {"depths": [4], "moments": True}},
         "statistics"),
        ({"method__exits": {"start": "means"}}, STATISTICS | {"settings": {"depths": [4], "final": True}},
         "statistics"),
        ({"method": {"name": "fedavg"}}, STATISTICS, "statistics"),
        ({}, {"trainer": "lora"}, "trainer 'lora'"),
        ({"method": {"name": "fedavg"}}, {"trainer": "scaled"}, "trainer 'scaled'"),
        ({"method": FIXED}, {"quotas": ()}, "masks"),
        ({"method": {"name": "fedrolex"}}, {"quotas": ()}, "masks"),
        ({}, {"settings": {"epochs": 2}}, "training.epochs = 2"),
        ({}, {"settings": {"local": {"optimizer": "sgd"}}}, "training.optimizer = 'sgd'"),
        ({}, {"quotas": (), "settings": {"mask": {"epochs": 10**9}}}, "method.masks.epochs = 1000000000"),
        ({"training__wire": {"up": "int8"}}, {"wire": Wire()}, "training.wire"),
        ({}, {"label_skew": "logit-adjustment"}, "training.label_skew"),
        ({}, {"client": "dev-2"}, "a task of 'dev-2'"),
    ],
)  # fmt: skip
def test_a_task_does_what_the_accepted_recipe_asks_and_no_more(
    recipe: dict[str, object], change: dict[str, object], named: str
) -> None:
    accepted = small_recipe(1, **recipe)
    order = order_of(accepted)
    look(accepted, order)  # the honest one is done
    with pytest.raises(OwnerRefused) as caught:
        look(accepted, replace(order, **change))
    assert named in str(caught.value)
    assert named in outward(caught.value)


@pytest.mark.parametrize("name", sorted(methods()))
def test_no_task_of_an_honest_server_is_refused(name: str) -> None:
    recipe = small_recipe(1, method={"name": name})
    look(recipe, order_of(recipe), build_run_setup(recipe).config)


def test_no_task_under_local_privacy_tells_what_no_noise_covers(tmp_path: Path) -> None:
    """Also where the recipe itself asks for it: no server makes such tasks, so whoever sends one has changed it."""
    pytest.importorskip("dp_accounting")
    for method, change in (({"name": "cos2p"}, {}), ({"name": "cos2p", "exits": {"start": "means"}}, STATISTICS)):
        recipe = small_recipe(1, method=method)
        order = replace(order_of(recipe), **change)
        look(recipe, order)
        with pytest.raises(OwnerRefused, match=r"privacy\.noise"):
            look(recipe.model_copy(update={"privacy": PrivacySettings.model_validate(LOCAL)}), order)


# ---------------------------------------------------------------- the device's own account of ε


def account(kit: Path, run: str = "lab-1", total: float = 0.0, **privacy: object) -> PrivacyAccount:
    pytest.importorskip("dp_accounting")
    settings = PrivacySettings.model_validate(LOCAL | privacy)
    return PrivacyAccount(kit, run, settings, OwnerFile(spend=Spend(epsilon=total)))


def answered(kit: Path, most: int = 30, **settings: object) -> int:
    """Updates that a device gives, with a new process for each."""
    for count in range(most):
        own = account(kit, **settings)
        try:
            own.check()
        except OwnerRefused:
            return count
        own.add()
    return most


def test_a_device_stops_by_itself_when_its_budget_is_spent(tmp_path: Path) -> None:
    sigma = multiplier_for(2.0, 1e-5, updates=3)
    assert answered(tmp_path, multiplier=sigma) == 3
    assert answered(tmp_path, multiplier=sigma) == 0  # a restart forgets nothing
    assert answered(tmp_path, run="lab-2", multiplier=sigma) == 3  # another run, with a budget of its own ...
    owner = {"multiplier": sigma, "total": epsilon_of(8, sigma, 1e-5)}
    assert answered(tmp_path, run="lab-3", **owner) == 2  # ... within the owner's for all of them
    assert answered(tmp_path, run="lab-4", **owner) == 0
    assert answered(tmp_path, run="lab-5", multiplier=sigma, epsilon=None, most=5) == 5  # none: counted alone


@pytest.mark.parametrize("damage", ["{", "{}", '{"all": 0.0, "runs": {"lab-1": 3.0}}', '{"all": "x", "runs": {}}'])
def test_an_account_of_epsilon_that_is_broken_counts_as_spent(tmp_path: Path, damage: str) -> None:
    own = account(tmp_path)
    own.add()
    (tmp_path / "privacy.json").write_text(damage)
    with pytest.raises(OwnerRefused, match="cannot be read"):
        own.check()


@pytest.mark.parametrize("multiplier", [0.0, 1e-6, 0.01, 0.2])
def test_noise_that_protects_nothing_is_not_local_privacy(tmp_path: Path, multiplier: float) -> None:
    with pytest.raises(OwnerRefused, match="gives no protection"):
        account(tmp_path, multiplier=multiplier, epsilon=None)
    account(tmp_path, multiplier=0.5, epsilon=None)


def test_no_delta_of_the_server_makes_little_noise_enough(tmp_path: Path) -> None:
    """With δ near 1 any noise would do: what the device counts for itself and its owner is at δ = 1e-5."""
    with pytest.raises(OwnerRefused, match="gives no protection"):
        account(tmp_path, multiplier=0.2, epsilon=8.0, delta=0.999)
    owner = {"multiplier": 2.0, "epsilon": None, "delta": 0.999, "total": epsilon_of(3, 2.0, 1e-5)}
    assert answered(tmp_path, **owner) == 3
