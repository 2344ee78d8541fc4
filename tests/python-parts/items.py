"""Checks of results of several: each behaves as the same result alone."""

import json
import re
import tempfile
import unittest
from pathlib import Path

from lines import without_best
from support import each, native, ps

GPIPE = "def device(r, p, m):\n    return phase('forward', m * F) + phase('backward', m * B)\n"
MODEL = {"model": "gpt2", "hardware": "a100-sxm-80gb", "seq": 256}


class Items(unittest.TestCase):
    def same(self, item, alone, about):
        """Checks that an item has the fields, the timeline and the files of the same result alone."""
        self.assertEqual(type(item), type(alone))
        self.assertEqual(without_best(item.json), alone.json, about)
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{number}.json" for number in range(2)]
            timelines, svgs, _ = (each(lambda one: call(*one), [(item, 0), (alone, 1)]) for call in (lambda one, _: one.timeline, lambda one, _: one._repr_svg_(), lambda one, k: one.save(files[k])))
            saved = [json.loads(file.read_text())["timelines"] for file in files]
        self.assertEqual(list(timelines[0]), list(timelines[1]), about)
        self.assertEqual([len(one) for one in saved], [1, 1], about)
        self.assertEqual(*[[one["schedule"], one["spans"]] for (one,) in saved], about)
        self.assertEqual(*[re.sub("pipesim (predict|explain) [^<]*", "", svg) for svg in svgs], about)

    def test_items_are_predictions_alone(self):
        own, two = ps.Schedule(GPIPE, "mine"), ps.Schedule(GPIPE.replace("'forward'", "'f'"), "mine")
        schedules = ["1f1b", own, "dualpipe", two, "gpipe"]
        found = ps.predict(schedules, [2, 3], [4, 2], costs={"F": 1, "B": 3})
        # DualPipe needs an even number of devices, and at least as many micro-batches.
        order = [(one, p, m) for p in (2, 3) for m in (4, 2) for one in schedules if (p, m) == (2, 4) or one != "dualpipe"]
        self.assertEqual([(one.schedule, one.devices, one.microbatches) for one in found], [(getattr(one, "name", one), p, m) for one, p, m in order])
        for place in (0, 2, 3, 4, 7, len(order) - 1):
            schedule, p, m = order[place]
            self.same(found[place], ps.predict(schedule, p, m, costs={"F": 1, "B": 3}), order[place])
        self.same(found.shortest, ps.predict(found.shortest.schedule, 2, 2, costs={"F": 1, "B": 3}) if found.shortest.schedule != "mine" else ps.predict(own, 2, 2, costs={"F": 1, "B": 3}), "shortest")

    def test_options_that_only_others_have(self):
        found = ps.predict(["1f1b", "interleaved-1f1b", "zb-v"], 2, 4, chunks=4)
        for item, alone in zip(found, (ps.predict("1f1b", 2, 4), ps.predict("interleaved-1f1b", 2, 4, chunks=4), ps.predict("zb-v", 2, 4))):
            self.same(item, alone, alone.schedule)

    def test_one_text_of_several(self):
        for item, name in zip(ps.predict("gpipe,1f1b", 2, 4, memory_cap=4), ("gpipe", "1f1b")):
            self.same(item, ps.predict(name, 2, 4, memory_cap=4), name)

    def test_items_of_models_on_hardware(self):
        found = ps.predict_model(schedule=["1f1b", "gpipe"], stages=[1, 2], tp=[1, 2], dp=2, micro_batch_size=(1, 2), micro="4,8", **MODEL)
        self.assertEqual(len(found), 32)
        for item in found[::9]:
            alone = ps.predict_model(schedule=item.schedule, stages=item.pp, tp=item.tp, dp=2, micro_batch_size=item.micro_batch_size, micro=item.microbatches, **MODEL)
            self.same(item, alone, repr(item))

    def test_explanations(self):
        for item, name in zip(ps.explain(["1f1b", "zb-h1"], 2, 4), ("1f1b", "zb-h1")):
            self.same(item, ps.explain(name, 2, 4), name)

    def test_notebooks_show_each(self):
        item = ps.predict(["1f1b", "gpipe"], 2, 4)[1]
        self.assertIn(">gpipe<", item._repr_svg_())
        self.assertNotIn(">1f1b<", item._repr_svg_())

    def test_files_of_a_result_leave_its_options_for_others_out(self):
        with tempfile.TemporaryDirectory() as folder:
            first = Path(folder) / "first.svg"
            found = ps.predict("1f1b", 2, 4, output=first, title="Mine", width=900, fail_if="bubble>0")
            before = first.read_bytes()
            first.unlink()
            self.assertEqual(max(span["end"] for span in found.timeline), 15)
            self.assertIn(b"Mine", before)
            for name in ("a.svg", "b.html", "c.trace.json", "d.json", "e.csv", "f.trace.json.gz", "G.SVG"):
                found.save(Path(folder) / name)
                self.assertGreater((Path(folder) / name).stat().st_size, 100)
            self.assertIn("Mine", (Path(folder) / "a.svg").read_text())
            self.assertFalse(first.exists())
            plans = ps.plan("gpt2", "a100-sxm-80gb", gpus=4, batch=16, seq=256)
            plans.save(Path(folder) / "plans.csv")
            self.assertEqual(len((Path(folder) / "plans.csv").read_text().splitlines()), 1 + len(plans))
        for other in (ps.check("1f1b", 2, 4), plans[0]):
            with self.assertRaises(AttributeError):
                other.save("x.svg")

    def test_one_of_several_on_the_command_line(self):
        for number, name in ((1, "1f1b"), (3, "gpipe")):
            found = native("predict", "-p", "3", "-m", "4", "-s", "1f1b,dualpipe,gpipe", "--chunks", "1", "--only", str(number), "-q", "--format", "csv")
            self.assertEqual([row.split(",")[0] for row in found.stdout.splitlines()[1:]], [name], found.stderr)
        for number, words in ((2, ["-s", "1f1b", "--only", "2"]), (2, ["--only", "1"]), (2, ["-s", "1f1b,gpipe", "--only", "0"])):
            for verb in ("predict", "explain", "check"):
                found = native(verb, "-p", "2", "-m", "4", *words)
                self.assertEqual((found.returncode, "--only" in found.stderr), (number, True), found.stderr)
