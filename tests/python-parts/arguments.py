"""Checks of arguments: every value means what it means in Python, or is refused by the argument's name."""

import enum
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath

from support import PIPESIM, each, native, ps

from pipesim import _arguments, _asked

OWN = "def device(r, p, m):\n    return m * F + m * B\n"


class Scalar:
    """A number of numpy's, in what the package uses of it."""

    def __init__(self, value):
        self.value = value

    def tolist(self):
        return self.value


class Name(str, enum.Enum):
    ONE = "1f1b"


class Count(enum.IntEnum):
    TWO = 2


def refused(function):
    """Returns the text of the error that is documented, or what happened instead."""
    try:
        return f"accepted: {function()!r}"
    except ps.UsageError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__} instead: {error}"


class Arguments(unittest.TestCase):
    def test_lists_of_costs_have_one_per_stage(self):
        # Stage 1 works 4 (2 + 4), between F and B of stage 0.
        for costs in (
            {"F": [1, 2], "B": [2, 4]}, {"F": (1.0, 2.0), "B": Scalar([2, 4])}, {"F": [Fraction(1), Fraction(4, 2)], "B": ["2", Decimal(4)]},
            {"F": ["1", "2"], "B": ["4/2", "8/2"]}, {"F": "1:2", "B": "2:4"}, "F=1:2,B=2:4", {"F": range(1, 3), "B": [2, 4]},
        ):  # fmt: skip
            self.assertEqual(ps.predict("1f1b", 2, 4, costs=costs).makespan, 27, costs)
        self.assertEqual(ps.predict("1f1b", 2, 4, costs={"F": ["1ms", "2ms"], "B": ["2ms", "4ms"]}).makespan, 27)
        self.assertEqual(ps.predict("1f1b", 1, 4, costs={"F": [1], "B": [2]}).makespan, 12)
        # A fraction is no list of two, whatever the others are.
        found = ps.predict("gpipe", 3, 1, costs={"F": Fraction(1, 4), "B": [1, 2, 3]}).makespan
        self.assertEqual(found, 6.75)

    def test_random_lists_of_costs(self):
        # One micro-batch goes through every stage and back: the sum of all costs.
        dice = random.Random(7)

        def one(_):
            p = dice.choice([2, 3, 4])
            draw = [lambda: dice.randint(1, 9), lambda: dice.randint(1, 99) / 10, lambda: Fraction(dice.randint(1, 9), dice.choice([2, 4, 5])),
                    lambda: Decimal(dice.randint(1, 999)) / 100, lambda: Scalar(dice.randint(1, 40) / 8), lambda: f"{dice.randint(1, 9)}/4"]  # fmt: skip
            costs = {key: [dice.choice(draw)() for _ in range(p)] for key in "FB"}
            exact = {key: sum(Fraction(str(getattr(value, "value", value))) for value in values) for key, values in costs.items()}
            return p, costs, float(sum(exact.values()))

        cases = [one(k) for k in range(200)]
        # The words of all are read by the program's rule: colons separate, a slash divides.
        for p, costs, total in cases:
            text = _arguments.costs(costs, p)
            found = [[Fraction(number) for number in pair.split("=")[1].split(":")] for pair in text.split(",")]
            self.assertEqual([len(values) for values in found], [p, p], text)
            self.assertAlmostEqual(float(sum(map(sum, found))), total, delta=1e-12, msg=text)
        for (p, costs, total), found in zip(cases[:40], each(lambda case: ps.predict("1f1b", case[0], 1, costs=case[1]).makespan, cases[:40])):
            self.assertAlmostEqual(found, total, delta=1e-9, msg=(p, costs))

    def test_values_of_other_types_are_numbers(self):
        self.assertEqual(ps.predict(Name.ONE, Count.TWO, Scalar(4), costs={"F": Scalar(1), "B": Decimal("2.0")}).makespan, 15)
        dice = random.Random(5)
        for _ in range(300):
            fraction = Fraction(dice.randint(0, 10**6), dice.randint(1, 10**6))
            text = _arguments.word("x", fraction)
            self.assertLess(abs(Fraction(text) - fraction), Fraction(1, 10**39), fraction)
            real = dice.choice([dice.random(), 10 ** dice.uniform(-20, 20), float(dice.randint(0, 10**17))])
            self.assertEqual(float(_arguments.word("x", real)), real)
        try:
            import numpy
        except ImportError:
            return
        found = ps.predict("1f1b", numpy.int64(2), numpy.uint8(4), costs={"F": numpy.array([1, 2]), "B": [numpy.float32(2), numpy.float64(4)]}, balance=numpy.bool_(False))
        self.assertEqual(found.makespan, 27)

    def test_what_would_mean_something_else_is_refused_by_name(self):
        def costs(value):
            return lambda: ps.predict("1f1b", 2, 4, costs=value)

        def option(**options):
            return lambda: ps.predict("1f1b", 2, 4, **options)

        nan, inf = float("nan"), float("inf")
        cases = [
            *[("devices", lambda value=value: ps.predict("1f1b", value, 4)) for value in
              (True, False, None, 2.0, 2.5, nan, inf, "", "x", "-2", "--help", -2, 0, b"2", [], [2, None], [True], {2: 1}, "2..", Fraction(5, 2), Decimal("NaN"), 1j, object(), [2.5], Path("2"))],
            *[("microbatches", lambda value=value: ps.predict("1f1b", 2, value)) for value in (None, True, "0", "8..4", [0], "@4")],
            *[("schedule", lambda value=value: ps.predict(value, 2, 4)) for value in
              ([], (), {}, None, 4, b"1f1b", [b"x"], [None], [["1f1b"]], Path("1f1b"), Path("a,b.star"), PurePosixPath("x.txt"), [True], "", ["1f1b", ""])],
            *[("costs", costs(value)) for value in
              ({}, [], [1, 2], 5, True, "", " ", b"F=1", Path("F=1.csv"), Path("costs.json"), Path("x"), {1: 2}, {"F": None}, {"F": True}, {"F": nan}, {"F": inf},
               {"F": Decimal("inf")}, {"F": "1,I=9"}, {"F,I": 1}, {"F=1,I": 2}, {"": 1}, {"F": []}, {"F": {"a": 1}}, {"F": ["1:2", 3]}, {"F": [1, None]}, {"F": ["1,2", 3]},
               {"F": [1, "2ms"]}, {"F": ["1ms", "2us"]}, {"F": [1], "B": [2, 4]}, {"F": [1, 2, 3], "B": [2, 4]}, {"F": [1]}, {"F": ""}, {"F": [1, 2], "comm": [1, 2]},
               {"F": -1}, {"X": 1}, {"F": b"1"}, {"F": 1j}, {"F": ["", 1]})],
            ("memory_cap", option(memory_cap=True)), ("memory_cap", option(memory_cap=False)), ("memory_cap", option(memory_cap=[1, 2])),
            ("memory_cap", option(memory_cap=nan)), ("memory_cap", option(memory_cap="--help")), ("memory_cap", option(memory_cap={"a": 1})),
            ("memory_cap", option(memory_cap=b"8")), ("memory_cap", option(memory_cap="")), ("memory_cap", option(memory_cap=object())),
            ("balance", option(balance="no")), ("balance", option(balance=1)), ("sequence_parallel", option(sequence_parallel="yes")),
            ("layers", option(layers=[])), ("layers", option(layers=["3,1", 2], costs="F=1")), ("layers", option(layers=[None])), ("layers", option(layers=[3, True])),
            ("tp", option(tp=2.0)), ("tp", option(tp=True)), ("tp", option(tp=[])), ("dp", option(dp=[2, "x"])), ("micro_batch_size", option(micro_batch_size=True)),
            ("straggler", option(straggler={})), ("straggler", option(straggler={"1=2": 3})), ("straggler", option(straggler={1: True})), ("straggler", option(straggler=5)),
            ("set", option(set={"group": None})), ("seq", option(seq={"a": 1})), ("slice_lengths", option(slice_lengths=["4:3", 2])), ("window", option(window=[1, 2, 3])),
            *[(name, option(**{name: True})) for name in ("help", "version", "quiet", "json")], ("format", option(format="csv")), ("only", option(only=1)),
            ("stages", option(stages=4)), ("micro", option(micro=8)), ("options", option(**{"": True})), ("options", option(**{"memory-cap": 8})), ("options", option(**{"a b": 1})),
            ("devices", lambda: ps.explain("1f1b", "2,4", 8)), ("devices", lambda: ps.check("1f1b", [2, 4], 8)), ("microbatches", lambda: ps.run("1f1b", 2, "2,4")),
            ("tp", lambda: ps.explain("1f1b", 2, 8, tp="1,2")), ("schedule", lambda: ps.run([], 2, 4)), ("schedule", lambda: ps.explain([], 2, 4)), ("schedule", lambda: ps.check([], 2, 4)),
            ("gpus", lambda: ps.plan("gpt2", "a100-sxm-80gb", gpus=None, batch=16, seq=256)), ("gpus", lambda: ps.plan("gpt2", "a100-sxm-80gb", gpus=[], batch=16, seq=256)),
            ("batch", lambda: ps.plan("gpt2", "a100-sxm-80gb", gpus=4, batch=True, seq=256)), ("seq", lambda: ps.plan("gpt2", "a100-sxm-80gb", gpus=4, batch=16, seq=2.5)),
            ("schedules", lambda: ps.plan("gpt2", "a100-sxm-80gb", gpus=4, batch=16, seq=256, schedules=[ps.Schedule(OWN)])),
            ("model", lambda: ps.plan(None, "a100-sxm-80gb", gpus=4, batch=16, seq=256)), ("model", lambda: ps.predict_model(b"gpt2", "a100-sxm-80gb", stages=1)),
            ("stages", lambda: ps.predict_model("gpt2", "a100-sxm-80gb", stages=1, stages_=2)), ("hardware", lambda: ps.predict_model("gpt2", 5j, stages=1)),
            ("timelines", lambda: ps.compare(5)), ("timelines", lambda: ps.compare(["a.json"])), ("name", lambda: ps.Schedule.read("x,y.star" if Path("x,y.star").exists() else __file__, name="a,b")),
            *[("name", lambda value=value: ps.Schedule(OWN, name=value)) for value in ("", "/tmp/x", "a/b", "..", "a,b", "a:b", "v=2", "-x", "a\\b", "a\nb", "a\0b", ".x", "x" * 200, None, 5, b"x", " x", "\ud800")],
            *[("ending", lambda value=value: ps.Schedule(OWN, ending=value)) for value in ("", "txt", "star/../x", None)],
            *[("text", lambda value=value: ps.Schedule(value)) for value in (None, b"x", "\ud800")],
            ("path", lambda: ps.Schedule.read("no-such-file.star")), ("path", lambda: ps.Schedule.read(5)), ("path", lambda: ps.Schedule.read(tempfile.gettempdir())),
            ("path", lambda: ps.predict("1f1b", 2, 4).save(5)), ("path", lambda: ps.predict("1f1b", 2, 4).save("svg")), ("path", lambda: ps.predict("1f1b", 2, 4).save("no/such/x.svg")),
            ("devices", lambda: ps.from_torch(type("Zero", (), {}), 2.5, 4)), ("chunks", lambda: ps.from_torch(type("Zero", (), {}), 2, 4, chunks=0)), ("devices", lambda: ps.from_torch(int)),
            ("", lambda: ps.predict("1f1b", 2, 4, title="a\0b")), ("", lambda: ps.predict("1f1b", 2, 4, title="\ud800")),
        ]  # fmt: skip
        texts = each(refused, [function for _, function in cases])
        wrong = [(number, name, text) for number, ((name, _), text) in enumerate(zip(cases, texts)) if not (text.startswith(name) or name == "schedule" and "schedule" in text) or " instead: " in text or text.startswith("accepted")]
        self.assertEqual(wrong, [])

    def test_several_by_text_are_lists(self):
        cases = [
            lambda: ps.predict("1f1b,gpipe", 2, 4), lambda: ps.predict("1f1b", "2,4", 8), lambda: ps.predict("1f1b", 4, "2..8*4"), lambda: ps.predict("1f1b", [2, 4], 8),
            lambda: ps.predict_model("gpt2", "a100-sxm-80gb", stages=1, micro=8, tp="1,2", seq=256), lambda: ps.predict_model("gpt2", "a100-sxm-80gb", stages=1, micro=8, dp=[1, 2], seq=256),
            lambda: ps.predict_model("gpt2", "a100-sxm-80gb", stages=(1, 2), micro=8, seq=256),
            lambda: ps.predict_model("gpt2", "a100-sxm-80gb", stages=1, micro=8, micro_batch_size=range(1, 3), seq=256),
        ]  # fmt: skip
        for number, found in enumerate(each(lambda case: case(), cases)):
            self.assertEqual((type(found), len(found)), (ps.Predictions, 2), number)
        self.assertEqual([type(found) for found in (ps.predict("1f1b", [2], 8), ps.predict(["1f1b"], 2, 8), ps.predict("1f1b", "2", 8))], [ps.Predictions, ps.Predictions, ps.Prediction])
        self.assertEqual(type(ps.predict("interleaved-1f1b:v=2", 2, 4)), ps.Prediction)
        self.assertEqual([one.schedule for one in ps.explain("1f1b,gpipe", 2, 4)], ["1f1b", "gpipe"])

    def test_options_of_lists_and_mappings(self):
        one = {"straggler": {0: 1.5, 1: 2}, "costs": {"F": 1, "B": 2}, "layers": [3, 1], "contention": [1, 1.1], "cores": 2, "transfer": Fraction(1, 2), "link_contention": [1, 1.5]}
        found = native("predict", "-p", "2", "-m", "4", "-s", "1f1b", "--straggler", "0=1.5", "--straggler", "1=2", "--costs", "F=1,B=2", "--layers", "3,1", "--contention", "1,1.1", "--cores", "2", "--transfer", "0.5", "--link-contention", "1,1.5", "-q", "--format", "csv")
        self.assertEqual(ps.predict("1f1b", 2, 4, **one).makespan, float(found.stdout.splitlines()[1].split(",")[5]))
        found = ps.predict("group-interleaved", 2, 8, set={"group": 4}, chunks=2)
        self.assertEqual(found.makespan, ps.predict("group-interleaved:group=4,v=2", 2, 8).makespan)
        plans = ps.plan("gpt2", "a100-sxm-80gb", gpus=[2, 4], batch=16, seq=256, fix={"tp": [1, 2], "pp": 1}, schedules=["1f1b", "gpipe"])
        self.assertLess(0, len(plans))
        self.assertEqual({(plan.pp, plan.tp > 2) for plan in plans}, {(1, False)})
        words = {
            ("layout", (("embedding", "decoder"), ("decoder", "loss"))): ['--layout=[["embedding", "decoder"], ["decoder", "loss"]]'], ("window", (0, None)): ["--window=0.."],
            ("slice_lengths", (4, 3)): ["--slice-lengths=4:3"], ("recompute", ("moe_act", "layernorm")): ["--recompute=moe_act,layernorm"], ("title", "-x"): ["--title=-x"],
            ("exact", True): ["--exact"], ("exact", 2000): ["--exact=2000"], ("cuda_graphs", True): ["--cuda-graphs=on"], ("profile", PurePosixPath("x.json")): ["--profile=./x.json"],
            ("fail_if", ("bubble>1%", "span>2")): ["--fail-if=bubble>1%", "--fail-if=span>2"], ("set_", "v=2"): ["--set=v=2"], ("memory_cap", None): [], ("balance", False): [],
        }  # fmt: skip
        self.assertEqual({key: _arguments.option(*key) for key in words}, words)

    def test_switches_are_those_of_the_program(self):
        for verb in ("predict", "explain", "check", "plan", "run", "compare", "import", "export", "train"):
            lines = re.findall(r"^ +(?:-\w, )?--([a-z0-9-]+)(.*)$", native(verb, "--help").stdout, re.MULTILINE)
            self.assertGreater(len(lines), 3, verb)
            for name, rest in lines:
                name = name.replace("-", "_")
                if name not in ("help", "quiet", "verbose"):
                    self.assertEqual(name in _arguments.SWITCHES, not rest.strip(), (verb, name, rest))

    def test_names_that_hold_several_schedules(self):
        # As the program takes them: as many rows as names.
        names = ["1f1b", "1f1b,gpipe", "interleaved-1f1b:v=2", "interleaved-1f1b:v=2,1f1b", "group-interleaved:v=2,group=2", "1f1b,group-interleaved:v=2,group=2", "zb-v,hanayo: waves = 2 ,gpipe"]
        rows = each(lambda name: len(native("predict", "-p", "2", "-m", "4", "-s", name, "-q", "--format", "csv").stdout.splitlines()) - 1, names)
        self.assertEqual([len(_asked.split(name)) for name in names], rows)
        self.assertEqual(_asked.split("a:v=2,x=3.star"), ["a:v=2", "x=3.star"])

    def test_schedules_of_any_allowed_name(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a b.star"
            path.write_text(OWN)
            for schedule in (path, str(path), ps.Schedule.read(path), ps.Schedule.read(path, name="größe (2)"), ps.Schedule(OWN, "auto"), ps.Schedule(OWN, "x.csv")):
                found = ps.predict(schedule, 2, 4)
                self.assertEqual((found.makespan, found.schedule), (15, schedule.name if isinstance(schedule, ps.Schedule) else "a b"))
            here = os.getcwd()
            os.chdir(folder)
            try:
                self.assertEqual(ps.predict(Path("a b.star"), 2, 4).makespan, 15)
                before = set(os.listdir("."))
                both = ps.predict([ps.Schedule(OWN, "1f1b"), ps.Schedule("def device(r, p, m):\n    return phase('f', m * F) + phase('b', m * B)\n", "1f1b"), "gpipe"], 2, 4)
                self.assertEqual([one.makespan for one in both], [15, 15, 15])
                self.assertEqual(set(os.listdir(".")), before, "files are left")
            finally:
                os.chdir(here)

    def test_a_wrong_program_is_told(self):
        kept = os.environ.get("PIPESIM")
        with tempfile.TemporaryDirectory() as folder:
            text, other = Path(folder) / "text", Path(folder) / "other"
            text.write_text("no program")
            other.write_text("#!/bin/sh\necho hello\n")
            other.chmod(0o755)
            broken = Path(folder) / "broken"
            broken.write_bytes(b"\x7fELF")
            broken.chmod(0o755)
            try:
                for value, part in ((f"{folder}/none", "found none"), (folder, "found a folder"), (text, "cannot be executed"), (other, "expected JSON"), (broken, "cannot be run"), ("no-such-program", "found none")):
                    os.environ["PIPESIM"] = str(value)
                    with self.assertRaisesRegex(ps.EnvironmentFailure, f"(?s){part}.*PIPESIM") as caught:
                        ps.predict("1f1b", 2, 4)
                    self.assertEqual(caught.exception.code, 5)
                ended = subprocess.run([sys.executable, "-m", "pipesim", "--version"], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
                self.assertEqual((ended.returncode, ended.stderr[:33]), (5, "error: expected the program pipesim"[:33]))
                os.environ["PIPESIM"] = PIPESIM
                self.assertEqual(ps.predict("1f1b", 2, 4).makespan, 15)
            finally:
                del os.environ["PIPESIM"]
                if kept is not None:
                    os.environ["PIPESIM"] = kept
