//! PyTorch's schedule files: read and written, against files that PyTorch and DualPipe's authors' code wrote.

use crate::support::{self, golden};
use pipesim::schedules::{CsvError, CsvFormat, Imported, MAX_CSV_BYTES, read_csv, write_csv};
use pipesim::{Kind, Op, Placement};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &str) -> Vec<PathBuf> {
    support::files(&golden(folder), "csv")
}

/// As PyTorch 2.11 to 2.14 have it, and as 2.15 has it.
const OLDER: CsvFormat = CsvFormat::ComputeComms { waits: false };
const NEWEST: CsvFormat = CsvFormat::ComputeComms { waits: true };

/// What PyTorch made of its classes' orders itself: `compute_comms` files of 2.11 and of 2.15.
fn lowered() -> Vec<PathBuf> {
    [files("pytorch-comms/2.11"), files("pytorch-comms/2.15")].concat()
}

fn import(file: &Path) -> Imported {
    let stem = file.file_stem().unwrap().to_str().unwrap();
    read_csv(stem, file.to_str().unwrap(), &fs::read_to_string(file).unwrap()).unwrap_or_else(|e| panic!("{e}"))
}

/// The text with idle slots left out.
fn without_blanks(text: &str) -> String {
    let row = |line: &str| line.split(',').filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join(",") + "\n";
    text.lines().map(row).collect()
}

/// p, v and m as the names of PyTorch's golden files state them.
fn stated(file: &Path) -> BTreeMap<char, u32> {
    let stem = file.file_stem().unwrap().to_str().unwrap();
    stem.split('_').skip(1).map(|part| (part.chars().next().unwrap(), part[1..].parse().unwrap())).collect()
}

fn refusal(text: &str) -> String {
    match read_csv("x", "x.csv", text) {
        Err(error) => error.to_string(),
        Ok(imported) => panic!("{text:?} was read as {imported:?}"),
    }
}

#[test]
fn pytorchs_files_survive_a_round_trip() {
    for file in files("pytorch") {
        let Imported { schedule, warnings } = import(&file);
        let (text, numbers) = (fs::read_to_string(&file).unwrap(), stated(&file));
        assert!(warnings.is_empty(), "{}: {warnings:?}", file.display());
        schedule.validate().unwrap();
        let shape = (schedule.devices(), schedule.placement.chunks(), schedule.microbatches);
        assert_eq!(shape, (numbers[&'p'], numbers[&'v'], numbers[&'m']), "{}", file.display());
        assert_eq!(write_csv(&schedule, CsvFormat::ComputeOnly).unwrap(), without_blanks(&text), "{}", file.display());
        for format in [OLDER, NEWEST] {
            let both = write_csv(&schedule, format).unwrap();
            let read = read_csv(&schedule.name, "comms", &both).unwrap().schedule;
            assert_eq!(read.with_sharding(None), schedule, "{}", file.display());
        }
    }
}

#[test]
fn placements_are_those_of_the_classes() {
    for file in files("pytorch") {
        let placement = import(&file).schedule.placement;
        let class = file.file_name().unwrap().to_str().unwrap().split('_').next().unwrap().to_string();
        let expected = match (class.as_str(), placement.chunks()) {
            ("ScheduleZBVZeroBubble" | "ScheduleDualPipeV", _) => Placement::zigzag("V", placement.devices(), 2),
            (_, 1) => Placement::linear(placement.devices()),
            (_, v) => Placement::looped("loop", placement.devices(), v),
        };
        assert_eq!(placement, expected, "{}", file.display());
    }
    let zigzag = "0F0,3F0,4F0,4B0,3B0,0B0\n1F0,2F0,5F0,5B0,2B0,1B0";
    assert_eq!(read_csv("x", "x", zigzag).unwrap().schedule.placement, Placement::zigzag("zigzag", 2, 3));
    let custom = "0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0";
    assert_eq!(read_csv("x", "x", custom).unwrap().schedule.placement.name(), "custom");
}

#[test]
fn dualpipe_runs_in_two_directions() {
    for file in files("dualpipe") {
        let schedule = import(&file).schedule;
        schedule.validate().unwrap();
        assert!(schedule.has_pairs(), "{}", file.display());
        if file.to_str().unwrap().contains("DualPipeV") {
            let text = without_blanks(&fs::read_to_string(&file).unwrap());
            assert_eq!(write_csv(&schedule, CsvFormat::ComputeOnly).unwrap(), text);
            continue;
        }
        assert_eq!(schedule.placement, Placement::bidirectional(schedule.devices(), 1).unwrap(), "{}", file.display());
        // The authors: direction 0 enters at device 0 and runs the first half of the micro-batches.
        assert_eq!(schedule.program(0)[0], Op::new(Kind::F, 0, 0));
        let last = schedule.devices() - 1;
        let half = schedule.microbatches / 2;
        assert_eq!(schedule.program(last)[0], Op::new(Kind::F, 0, half).in_direction(1));
        for format in [CsvFormat::ComputeOnly, OLDER, NEWEST] {
            let error = write_csv(&schedule, format).unwrap_err().to_string();
            assert!(error.contains("in PyTorch a stage is on one row only"), "{error}");
        }
    }
}

/// Sending stage, receiving stage, micro-batch: the same at both ends.
type Ends = (u32, u32, u32);

/// One action of a `compute_comms` row: text of its ops or of its transfer.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Compute(Vec<Op>),
    /// `true`: this row receives.
    Transfer(Ends, bool),
    /// For this row's send.
    Wait(Ends),
    Nothing,
}

fn step(cell: &str) -> Step {
    if let Some((pair, _)) = cell.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        return Step::Compute(pair.split(';').map(|op| op.parse().unwrap()).collect());
    }
    for (name, receives, toward) in [
        ("WAIT_SEND_F", false, 1),
        ("WAIT_SEND_B", false, -1),
        ("SEND_F", false, 1),
        ("SEND_B", false, -1),
        ("RECV_F", true, -1),
        ("RECV_B", true, 1),
    ] {
        if let Some((stage, microbatch)) = cell.split_once(name) {
            let (here, microbatch) = (stage.parse::<i32>().unwrap(), microbatch.parse().unwrap());
            let there = (here + toward) as u32;
            let ends = if receives { (there, here as u32) } else { (here as u32, there) };
            let ends = (ends.0, ends.1, microbatch);
            return if name.starts_with("WAIT") { Step::Wait(ends) } else { Step::Transfer(ends, receives) };
        }
    }
    match cell.parse() {
        Ok(op) => Step::Compute(vec![op]),
        Err(_) => Step::Nothing,
    }
}

/// What `op` waits for from another stage.
fn need(op: Op, stages: u32) -> Option<Ends> {
    op.upstream(stages).map(|from| (from, op.stage(), op.microbatch()))
}

/// Runs the rows as PyTorch's runtime does on the strictest link: transfers of a device leave one queue in order and
/// complete only when both ends are at the head of theirs; an op waits for what it needs, a wait for its send. `Err`: the
/// rows that are stuck.
fn rendezvous(text: &str, placement: &Placement) -> Result<(), String> {
    let rows: Vec<Vec<Step>> = text.lines().map(|line| line.split(',').map(step).collect()).collect();
    let mut at = vec![0; rows.len()];
    let mut queues: Vec<VecDeque<(Ends, bool)>> = vec![VecDeque::new(); rows.len()];
    let mut here: Vec<Vec<Ends>> = vec![Vec::new(); rows.len()];
    loop {
        let mut progress = false;
        for row in 0..rows.len() {
            while let Some(next) = rows[row].get(at[row]) {
                match next {
                    Step::Nothing => {}
                    Step::Transfer(ends, receives) => queues[row].push_back((*ends, *receives)),
                    Step::Wait(ends) if queues[row].contains(&(*ends, false)) => break,
                    Step::Wait(_) => {}
                    Step::Compute(ops) => {
                        let needs: Vec<_> = ops.iter().filter_map(|op| need(*op, placement.stages())).collect();
                        if !needs.iter().all(|ends| here[row].contains(ends)) {
                            break;
                        }
                        here[row].retain(|ends| !needs.contains(ends));
                        for op in ops.iter().filter(|op| op.kind() != Kind::W && !placement.leaves_device(**op)) {
                            let next = if op.kind() == Kind::F { op.stage() + 1 } else { op.stage().wrapping_sub(1) };
                            here[row].push((op.stage(), next, op.microbatch()));
                        }
                    }
                }
                (at[row], progress) = (at[row] + 1, true);
            }
        }
        for row in 0..rows.len() {
            let Some(&(ends, false)) = queues[row].front() else { continue };
            let peer = placement.device_of_stage(ends.1, 0) as usize;
            if queues[peer].front() == Some(&(ends, true)) {
                queues[row].pop_front();
                queues[peer].pop_front();
                here[peer].push(ends);
                progress = true;
            }
        }
        if !progress {
            let stuck: Vec<String> = (0..rows.len())
                .filter(|&row| at[row] < rows[row].len() || !queues[row].is_empty())
                .map(|row| format!("row {row} at {:?}, queue {:?}", rows[row].get(at[row]), queues[row].front()))
                .collect();
            return if stuck.is_empty() { Ok(()) } else { Err(stuck.join("; ")) };
        }
    }
}

#[test]
fn transfers_run_even_where_a_send_waits_for_its_receive() {
    for file in [files("pytorch"), files("dualpipe")].concat() {
        let schedule = import(&file).schedule;
        if schedule.placement.directions() == 2 {
            continue;
        }
        for format in [OLDER, NEWEST] {
            let text = write_csv(&schedule, format).unwrap();
            rendezvous(&text, &schedule.placement).unwrap_or_else(|stuck| panic!("{}: {stuck}", file.display()));
        }
    }
}

#[test]
fn the_link_model_of_these_tests_refuses_crossed_sends() {
    let crossed =
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1";
    assert!(rendezvous(crossed, &Placement::linear(2)).unwrap_err().contains("row 0"));
}

/// Ops between a receive and the op that needs it, and between an op and its send, all files together.
fn distances(text: &str, placement: &Placement) -> (usize, usize) {
    let (mut early, mut late) = (0, 0);
    for line in text.lines() {
        let steps: Vec<Step> = line.split(',').map(step).filter(|step| *step != Step::Nothing).collect();
        let computes = |step: &Step, test: &dyn Fn(Op) -> bool| matches!(step, Step::Compute(ops) if ops.iter().any(|op| test(*op)));
        for (index, step) in steps.iter().enumerate() {
            let Step::Transfer(ends, receives) = step else { continue };
            let uses = |op: Op| need(op, placement.stages()) == Some(*ends);
            let makes = |op: Op| {
                let forward = ends.1 > ends.0;
                (op.stage(), op.microbatch()) == (ends.0, ends.2)
                    && (op.kind() == Kind::F) == forward
                    && op.kind() != Kind::W
            };
            if *receives {
                let other = |step: &&Step| !computes(step, &uses);
                early +=
                    steps[index..].iter().take_while(other).filter(|step| matches!(step, Step::Compute(_))).count();
            } else {
                let other = |step: &&Step| !computes(step, &makes);
                late += steps[..index]
                    .iter()
                    .rev()
                    .take_while(other)
                    .filter(|step| matches!(step, Step::Compute(_)))
                    .count();
            }
        }
    }
    (early, late)
}

#[test]
fn receives_stand_before_their_op_and_sends_after_theirs() {
    for file in files("pytorch") {
        let schedule = import(&file).schedule;
        let text = write_csv(&schedule, NEWEST).unwrap();
        let (early, late) = distances(&text, &schedule.placement);
        assert_eq!(late, 0, "{}", file.display());
        if ["ScheduleGPipe", "Schedule1F1B"].iter().any(|class| file.to_str().unwrap().contains(&format!("{class}_"))) {
            assert_eq!(early, 0, "{}", file.display());
        }
    }
    // Elsewhere some must come earlier, but never as early as PyTorch itself puts them.
    for file in lowered() {
        let schedule = import(&file).schedule;
        let (early, _) = distances(&write_csv(&schedule, NEWEST).unwrap(), &schedule.placement);
        let (early_in_pytorch, _) = distances(&fs::read_to_string(&file).unwrap(), &schedule.placement);
        assert!(early < early_in_pytorch, "{}: {early}, PyTorch {early_in_pytorch}", file.display());
    }
}

/// The cells of each row for which `keep` holds.
fn cells(text: &str, keep: impl Fn(&str) -> bool) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split(',').filter(|cell| keep(cell)).collect()).collect()
}

#[test]
fn waits_stand_where_pytorch_puts_them() {
    for file in files("pytorch-comms/2.15") {
        let (schedule, own) = (import(&file).schedule, fs::read_to_string(&file).unwrap());
        let text = write_csv(&schedule, NEWEST).unwrap();
        // PyTorch receives and gathers as early as it can, pipesim as late; all else is equal, cell by cell.
        let late = |cell: &str| !cell.contains("RECV") && !cell.contains("UNSHARD");
        assert_eq!(cells(&text, late), cells(&own, late), "{}", file.display());
    }
    for file in files("pytorch") {
        let schedule = import(&file).schedule;
        let [older, newest] = [OLDER, NEWEST].map(|format| write_csv(&schedule, format).unwrap());
        assert!(!older.contains("WAIT"), "{}", file.display());
        assert_eq!(cells(&newest, |cell| !cell.contains("WAIT")), cells(&older, |_| true), "{}", file.display());
        let [sends, waits] = ["SEND_", "WAIT_SEND_"].map(|name| newest.matches(name).count());
        assert_eq!(sends, 2 * waits, "{}", file.display());
    }
}

#[test]
fn waits_are_held_against_what_they_wait_for() {
    let schedule = read_csv("x", "x", "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0").unwrap().schedule;
    let text = write_csv(&schedule, NEWEST).unwrap();
    for part in ["3WAIT_REDUCE_GRAD", "0WAIT_SEND_F0", "3WAIT_SEND_B0", "0WAIT_REDUCE_GRAD", "1WAIT_SEND_B0"] {
        let without = text.replacen(&format!(",{part}"), "", 1);
        assert!(without != text && refusal(&without).contains(part), "{part}: {}", refusal(&without));
        let early = format!("{part},{without}");
        assert!(refusal(&early).contains("before it"), "{part}: {}", refusal(&early));
        let twice = text.replacen(part, &format!("{part},{part}"), 1);
        assert!(refusal(&twice).contains("remove"), "{part}: {}", refusal(&twice));
    }
    let pending = "0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,1WAIT_REDUCE_GRAD";
    assert!(refusal(pending).contains("cell 6: expected 1WAIT_REDUCE_GRAD before it"), "{}", refusal(pending));
    assert!(refusal("0F0,0B0,0WAIT_SEND_F9").contains("expected 0SEND_F9 before it"));
    assert!(refusal("0F0,0B0,7WAIT_SEND_F0").contains("expected 7SEND_F0 before it"));
    assert!(refusal("0F0,0B0,0WAIT_SEND_F").contains("a micro-batch number after WAIT_SEND_F"));
}

#[test]
fn files_with_communication_are_checked_and_understood() {
    for file in lowered() {
        let imported = import(&file);
        let stem = file.file_stem().unwrap().to_str().unwrap();
        let golden = golden(format!("pytorch/{stem}.csv"));
        assert!(imported.schedule.sharding.is_some(), "{stem}");
        assert_eq!(imported.schedule.with_sharding(None), import(&golden).schedule, "{stem}");
        assert_eq!(imported.warnings.len(), 1, "{:?}", imported.warnings);
        assert!(imported.warnings[0].contains("UNSHARD"), "{:?}", imported.warnings);
        // Any transfer left out, doubled or put into another row is noticed.
        let text = fs::read_to_string(&file).unwrap();
        for (number, cell) in
            text.split([',', '\n']).enumerate().filter(|(_, cell)| cell.contains("_F") || cell.contains("_B"))
        {
            let cell = cell.trim();
            if cell.contains("OVERLAP") {
                continue;
            }
            let without = text.replacen(cell, "", 1);
            assert!(read_csv("x", "x", &without).is_err(), "{stem} without cell {number} ({cell})");
            let twice = text.replacen(cell, &format!("{cell},{cell}"), 1);
            let once = if cell.contains("WAIT") { "each wait once" } else { "each transfer once" };
            assert!(refusal(&twice).contains(once), "{stem} with {cell} twice");
        }
    }
}

#[test]
fn the_old_dialect_is_understood() {
    // PyTorch before December 2024: B is the input's half of the backward, BW the whole.
    let imported = read_csv("x", "x", "0F0,0F1,,0B0,0W0,0BW1\n1F0,1B0,1F1,1B1,1W0,1W1").unwrap();
    assert_eq!(imported.warnings, ["old dialect (PyTorch before December 2024): 3 B read as I, 1 BW read as B"]);
    let text = write_csv(&imported.schedule, CsvFormat::ComputeOnly).unwrap();
    assert_eq!(text, "0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1F1,1I1,1W0,1W1\n");
    assert!(refusal("0F0,0I0,0W0,0F1,0BW1").contains("found '0BW1'"));
    assert!(refusal("0F0,0B0,0W0,0F1,0B1").contains("old dialect"));
}

#[test]
fn what_spreadsheets_do_to_a_file_does_no_harm() {
    let plain = read_csv("x", "x", "0F0,0B0\n1F0,1B0\n").unwrap();
    let untidy =
        ["\u{feff}0F0,0B0\r\n1F0,1B0\r\n\r\n,,,\r\n", " 0F0 ,, \"0B0\",,\n,\t1F0,\"1B0\"\n\n\n", "0F0,0B0\r1F0,1B0"];
    for text in untidy {
        assert_eq!(read_csv("x", "x", text).unwrap(), plain, "{text:?}");
    }
    assert_eq!(read_csv("x", "x", "0F0,\"( 0F1 ;\n0B0)OVERLAP_F_B\",0B1").unwrap().schedule.ops().len(), 4);
}

#[test]
fn errors_name_the_place_and_say_what_to_do() {
    let cases: [(&str, &[&str]); 23] = [
        ("", &["x.csv: expected an op such as 0F3", "found no op at all"]),
        (",,\n,\n", &["found no op at all"]),
        (
            "0F0,0B0\n1F0,1X0",
            &["x.csv, row 2 (device 1), cell 2: expected an op such as 0F3", "found '1X0'; correct the cell"],
        ),
        ("0F0,0B", &["row 1 (device 0), cell 2", "a micro-batch number after B"]),
        ("0F0,,0F0", &["cell 3", "0F0 runs twice"]),
        ("0B0,0F0", &["cell 1", "0B0 runs before 0F0"]),
        ("0F0", &["row 1 (device 0) where 0F0 has no backward"]),
        ("0F0,0I0", &["0W0 is missing"]),
        ("0F0,0B0\n\n1F0,1B0", &["row 2 (device 1) without any", "remove the empty row"]),
        ("4000000000F0,0B0", &["cell 1", "a stage number of at most"]),
        ("0F0,0B0,1000000F0", &["cell 3", "stage numbers from 0 without gaps, so below 3"]),
        ("0F0,0B0,200000000F0", &["cell 3", "a stage number of at most 1048575"]),
        ("0F0,0B0,0F4000000000", &["cell 3", "micro-batch numbers from 0 without gaps, so below 3"]),
        ("0F0,0B0,0F99999999999", &["cell 3", "below 2^32"]),
        ("0F0,0B0,2F0,2B0", &["1F0 is missing", "found '2F0'"]),
        ("0F0,0B0,0F2,0B2", &["0F1 is missing", "found '0F2'"]),
        ("0F0,1F0,1B0,0B0\n2F0,2B0", &["each with the same number of stages"]),
        ("0F0,0F1,0B0\n0B1", &["row 2 (device 1), cell 1", "expected this op on row 1 with others of stage 0"]),
        ("0F0,0F2,0B0,0B2,1F1,1F3,1B1,1B3\n1F0,1F2,1B0,1B2,0F1,0F3,0B1,0B3", &["stage may be on two rows only if"]),
        ("0F0,\"0B0", &["cell 2", "close or remove the quote"]),
        ("0F0,(0F1;0B0", &["cell 2", "a pair such as (0F7;3B2)OVERLAP_F_B"]),
        ("0F0,0F1,(0B0;0B1)OVERLAP_F_B", &["cell 3", "is not an overlapped pair"]),
        ("(0F0;0B0)OVERLAP_F_B", &["cell 1", "needs the forward of its own pair"]),
    ];
    for (text, parts) in cases {
        let error = refusal(text);
        parts.iter().for_each(|part| assert!(error.contains(part), "{text:?}: {error}"));
    }
    let long = " ".repeat(MAX_CSV_BYTES + 1);
    assert!(refusal(&long).contains("expected at most 256 MiB"));
}

#[test]
fn pytorchs_loss_numbers_are_minded() {
    let swapped = read_csv("x", "x", "0F1,0F0,0B0,0B1").unwrap().schedule;
    let error = write_csv(&swapped, CsvFormat::ComputeOnly).unwrap_err();
    assert!(
        matches!(&error, CsvError::Schedule { reason, .. } if reason.contains("0F1 comes where 0F0 should")),
        "{error}"
    );
}

#[test]
fn a_deadlock_is_named_and_not_entered() {
    let schedule = read_csv("x", "x", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0").unwrap().schedule;
    assert!(write_csv(&schedule, NEWEST).unwrap_err().to_string().contains("comes where"));
    let schedule = read_csv("x", "x", "0F0,0F1,0B1,0B0\n1F0,1F1,1B0,1B1").unwrap().schedule;
    write_csv(&schedule, NEWEST).unwrap();
    let schedule = read_csv("x", "x", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1").unwrap().schedule;
    let error = write_csv(&schedule, NEWEST).unwrap_err().to_string();
    assert!(error.contains("deadlocks: device 0 waits at 0B0"), "{error}");
}

#[test]
fn long_files_are_read_without_places_for_every_pair() {
    // 200 000 stages on one device; as many micro-batches of one stage; as many rows.
    let count = 200_000;
    let chain = |of: &dyn Fn(usize) -> String| (0..count).map(of).collect::<Vec<_>>();
    let stages = [chain(&|i| format!("{i}F0")), chain(&|i| format!("{}B0", count - 1 - i))].concat().join(",");
    let microbatches = chain(&|i| format!("0F{i},0B{i}")).join(",");
    let rows = chain(&|i| format!("{i}F0,{i}B0")).join("\n");
    // A file whose numbers ask for S × m = 10^10 places.
    let sparse = chain(&|i| format!("{i}F0,0F{i}")).join(",");
    for text in [&stages, &microbatches, &rows] {
        assert_eq!(read_csv("x", "x", text).unwrap().schedule.ops().len(), 2 * count);
    }
    assert!(refusal(&sparse).contains("1F1 is missing"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_text_makes_it_panic(text in "[0-4FIWBSENDRCVO_();, \"\n\r\u{feff}é-]{0,80}") {
        if let Ok(imported) = read_csv("x", "x", &text) {
            imported.schedule.validate().unwrap();
        }
    }

    #[test]
    fn no_change_to_a_file_makes_it_panic(
        which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), length in 0_usize..6, new in "[0-9FIWB(;),\n]{0,6}"
    ) {
        let files = [files("pytorch"), files("dualpipe"), lowered()].concat();
        let mut text = fs::read_to_string(which.get(&files)).unwrap();
        let start = at.index(text.len());
        let end = (start + length).min(text.len());
        text.replace_range(start..end, &new);
        if let Ok(imported) = read_csv("x", "x", &text) {
            imported.schedule.validate().unwrap();
            for format in [CsvFormat::ComputeOnly, OLDER, NEWEST] {
                if let Ok(text) = write_csv(&imported.schedule, format) {
                    let [read, first] = [read_csv("x", "x", &text).unwrap().schedule, imported.schedule.clone()];
                    prop_assert_eq!(read.with_sharding(None), first.with_sharding(None));
                }
            }
        }
    }
}
