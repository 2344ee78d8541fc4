//! FSDP's collectives between ops: PyTorch's orders, closed forms, and times from a second, plain simulation of the text.

use crate::support::{golden, golden_json, golden_path};
use pipesim::schedules::{CsvFormat, Fsdp, Lookahead, read_csv, write_csv};
use pipesim::{Costs, GivenCosts, PredictionFigures, Schedule, Selection};
use std::collections::BTreeMap;

fn schedule_of(file: &str) -> Schedule {
    read_csv(file, file, &std::fs::read_to_string(golden("pytorch").join(file)).unwrap()).unwrap().schedule
}

fn rule(most: u64, lookahead: &str) -> Fsdp {
    Fsdp {
        max_active_stages: most as u32,
        unshard_lookahead: lookahead.parse().unwrap(),
        defer_reduce_grad_wait: false,
    }
}

/// PyTorch 2.15 made these from its own compute orders.
#[test]
fn orders_are_pytorchs() {
    let golden = golden_json("slices/fsdp.json");
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let file = case["compute"].as_str().unwrap();
        let (most, lookahead) =
            (case["max_active_stages"].as_u64().unwrap(), case["unshard_lookahead"].as_str().unwrap());
        let schedule = schedule_of(file);
        let sharding = rule(most, lookahead).sharding(&schedule).unwrap();
        let text = write_csv(&schedule.with_sharding(Some(sharding)), CsvFormat::ComputeCollectives).unwrap();
        let expected: Vec<&str> =
            case["programs"].as_array().unwrap().iter().map(|row| row.as_str().unwrap()).collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "{file} {most} {lookahead}");
        // read back, the file says the same
        let again = read_csv(file, file, &text).unwrap().schedule;
        assert_eq!(write_csv(&again, CsvFormat::ComputeCollectives).unwrap(), text, "{file}");
    }
    assert_eq!(cases.len(), 35);
}

/// The files of PyTorch's lowering keep their collectives: in the order of ops, and with the waits for sends and reductions.
#[test]
fn lowered_files_keep_their_collectives() {
    let only = |text: &str| -> Vec<Vec<String>> {
        let keeps = |cell: &&str| !cell.contains("SEND") && !cell.contains("RECV");
        text.lines().map(|row| row.split(',').filter(keeps).map(str::to_string).collect()).collect()
    };
    for name in ["ScheduleInterleaved1F1B_p2_v2_m4", "ScheduleZBVZeroBubble_p2_v2_m4", "ScheduleDualPipeV_p2_v2_m4"] {
        let text = std::fs::read_to_string(golden_path(format!("pytorch-comms/2.15/{name}.csv"))).unwrap();
        let schedule = read_csv(name, name, &text).unwrap().schedule;
        let written = write_csv(&schedule, CsvFormat::ComputeComms { waits: true }).unwrap();
        assert_eq!(only(&written), only(&text), "{name}");
        // and the rule with PyTorch's defaults gives the same
        let sharding = Fsdp::default().sharding(&schedule).unwrap();
        assert_eq!(schedule.sharding.as_deref(), Some(&sharding), "{name}");
    }
}

#[test]
fn wrong_collectives_are_rejected_with_their_cell() {
    for (text, expected) in [
        ("0UNSHARD,0F0,0RESHARD,0B0\n", "0UNSHARD before it"),
        ("0UNSHARD,0F0,0UNSHARD,0B0\n", "0RESHARD before it"),
        ("0UNSHARD,0F0,0B0,0RESHARD,0RESHARD\n", "0UNSHARD before it"),
        ("0UNSHARD,3UNSHARD,0F0,0B0\n", "a collective of a stage of this row"),
    ] {
        let error = read_csv("x", "x.csv", text).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("row 1"), "{text}: {error}");
    }
    let refused = |fsdp: Fsdp, file: &str| fsdp.sharding(&schedule_of(file)).unwrap_err().to_string();
    let pairs = "ScheduleDualPipeV_p4_v2_m8.csv";
    assert!(refused(rule(1, "full"), pairs).contains("needs 2 stages at the same time; raise it to 2"));
    assert!(refused(rule(2, "1,2"), pairs).contains("2 numbers for 4 devices"));
    assert!(refused(rule(2, "1,2,3,2"), pairs).contains("of device 2: expected 1 to `max-active-stages` 2, found 3"));
    assert!(
        "half".parse::<Lookahead>().unwrap_err().to_string().contains("expected full, auto or a number per device")
    );
}

/// Costs as exact numbers, in hundredths.
struct Times {
    ops: BTreeMap<char, u64>,
    comm: u64,
    unshard: u64,
    reduce: u64,
}

/// The state of a device in the plain simulation.
#[derive(Default)]
struct Device {
    at: usize,
    free: u64,
    queues: [u64; 2],
    gathered: BTreeMap<u64, u64>,
    reduced: BTreeMap<u64, u64>,
    end: u64,
}

/// Simulates the rows of a file: returns the makespan and when each device has ended, waits included.
fn simulated(text: &str, stages: u64, times: &Times) -> (u64, Vec<u64>) {
    let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split(',').collect()).collect();
    let mut devices: Vec<Device> = rows.iter().map(|_| Device::default()).collect();
    let mut device_of = BTreeMap::new();
    for (device, row) in rows.iter().enumerate() {
        let stage = |cell: &str| {
            cell.trim_end_matches(|c: char| !c.is_ascii_digit())
                .split(|c: char| c.is_alphabetic())
                .next()
                .map(str::to_string)
        };
        row.iter().filter(|cell| !cell.contains("SHARD") && !cell.contains("GRAD")).for_each(|cell| {
            device_of.insert(stage(cell).unwrap().parse::<u64>().unwrap(), device);
        });
    }
    let mut done: BTreeMap<(u64, bool, String), u64> = BTreeMap::new(); // by stage, backward or not, micro-batch
    loop {
        let mut moved = false;
        for (number, device) in devices.iter_mut().enumerate() {
            while let Some(cell) = rows[number].get(device.at) {
                let digits = cell.find(|c: char| !c.is_ascii_digit()).unwrap();
                let (stage, rest) = (cell[..digits].parse::<u64>().unwrap(), &cell[digits..]);
                match rest {
                    "UNSHARD" => {
                        device.queues[0] = device.queues[0].max(device.free) + times.unshard;
                        device.gathered.insert(stage, device.queues[0]);
                    }
                    "REDUCE_GRAD" => {
                        device.queues[1] = device.queues[1].max(device.free) + times.reduce;
                        device.reduced.insert(stage, device.queues[1]);
                    }
                    "WAIT_REDUCE_GRAD" => device.free = device.free.max(device.reduced[&stage]),
                    "RESHARD" => {}
                    _ => {
                        let (kind, microbatch) = (rest.chars().next().unwrap(), rest[1..].to_string());
                        let backward = kind != 'F';
                        let from = match kind {
                            'F' => stage.checked_sub(1),
                            'W' => None,
                            _ => Some(stage + 1).filter(|&next| next < stages),
                        };
                        let mut start = device.free.max(device.gathered[&stage]);
                        if let Some(from) = from {
                            let Some(&made) = done.get(&(from, backward, microbatch.clone())) else { break };
                            start = start.max(made + if device_of[&from] == number { 0 } else { times.comm });
                        }
                        (device.free, device.end) = (start + times.ops[&kind], start + times.ops[&kind]);
                        if kind != 'W' {
                            done.insert((stage, backward, microbatch), device.free);
                        }
                    }
                }
                device.at += 1;
                moved = true;
            }
        }
        if !moved {
            assert!(devices.iter().zip(&rows).all(|(device, row)| device.at == row.len()), "stuck");
            return (devices.iter().map(|device| device.end).max().unwrap(), devices.iter().map(|d| d.free).collect());
        }
    }
}

fn predicted(name: &str, [p, m]: [u32; 2], costs: &str, fsdp: Option<Fsdp>, chunks: Option<u32>) -> PredictionFigures {
    let costs = Costs::given(costs.parse::<GivenCosts>().unwrap());
    let selection = Selection { fsdp, chunks, ..Selection::new(p, m) };
    selection.resolve(name, &costs).unwrap().predict().unwrap().prediction
}

/// Times of all golden orders without pairs, under settings that the golden file has and that it lacks.
#[test]
fn times_are_those_of_a_plain_simulation_of_the_text() {
    let files = [
        "ScheduleInterleaved1F1B_p4_v4_m8.csv",
        "ScheduleLoopedBFS_p2_v4_m4.csv",
        "ScheduleZBVZeroBubble_p4_v2_m8.csv",
        "ScheduleInterleavedZeroBubble_p4_v4_m8.csv",
    ];
    for file in files {
        let schedule = schedule_of(file);
        let (p, v, m) = (schedule.devices(), schedule.placement.chunks(), schedule.microbatches);
        for (number, (most, lookahead)) in
            [(1, "full"), (2, "full"), (3, "auto"), (3, "1,2,1,3"), (9, "full")].into_iter().enumerate()
        {
            let lookahead = if p == 2 { lookahead.replace("1,2,1,3", "1,3") } else { lookahead.to_string() };
            let fsdp = Fsdp { defer_reduce_grad_wait: number % 2 == 1, ..rule(most, &lookahead) };
            let sharding = fsdp.sharding(&schedule).unwrap();
            let text =
                write_csv(&schedule.clone().with_sharding(Some(sharding)), CsvFormat::ComputeCollectives).unwrap();
            // per device, so v times those of a stage
            let hundredths = |stage: u64| stage as f64 / 100.0 * f64::from(v);
            let times =
                Times { ops: [('F', 100), ('I', 110), ('W', 70), ('B', 180)].into(), comm: 7, unshard: 55, reduce: 90 };
            let (makespan, ends) = simulated(&text, u64::from(p * v), &times);
            let costs = format!(
                "F={},I={},W={},B={},comm=0.07,unshard={},reduce={}",
                hundredths(100),
                hundredths(110),
                hundredths(70),
                hundredths(180),
                hundredths(55),
                hundredths(90)
            );
            let found = predicted(&golden_path(format!("pytorch/{file}")), [p, m], &costs, Some(fsdp), None);
            assert_eq!((found.metrics.makespan * 100.0).round() as u64, makespan, "{file} {most} {lookahead}");
            let found_ends: Vec<u64> =
                found.sharding.iter().map(|device| (device.end * 100.0).round() as u64).collect();
            assert_eq!(found_ends, ends, "{file} {most}");
            assert!(found.sharding.iter().all(|device| device.peak_stages <= most.min(u64::from(v))), "{file}");
        }
    }
}

/// One device, two stages in a loop, one micro-batch: F0 F1 B1 B0.
#[test]
fn exposed_times_have_closed_forms() {
    let of = |most: u64, defer: bool| {
        let fsdp = Fsdp { defer_reduce_grad_wait: defer, ..rule(most, "full") };
        predicted("looped-bfs", [1, 1], "F=2,I=2,W=2,unshard=6,reduce=10", Some(fsdp), Some(2))
    };
    // stages compute 1, 1, 2, 2 and take 3 to gather, 5 to reduce
    for (most, defer, makespan, exposed, gathers) in [
        (1, false, 6.0 + 3.0 * 3.0 + 5.0, 3.0 * 3.0 + 2.0 * 5.0, 3),
        (2, false, 6.0 + 3.0 + 2.0 + 5.0, 3.0 + 2.0 + 2.0 * 5.0, 2),
        (2, true, 6.0 + 3.0 + 2.0, 3.0 + 2.0 + 3.0 + 5.0, 2),
    ] {
        let found = of(most, defer);
        let device = &found.sharding[0];
        assert_eq!(
            (found.metrics.makespan, device.exposed, device.gathers),
            (makespan, exposed, gathers),
            "{most} {defer}"
        );
        assert_eq!(device.end, 6.0 + device.exposed, "{most}");
        assert_eq!(device.peak_parameters, most as f64 / 2.0);
    }
    // reference: device 0 gathers 15, 8, 3 times for R = 1, 2, 3
    for (most, gathers) in [(1, 15), (2, 8), (3, 3)] {
        let found = predicted("interleaved-1f1b", [2, 4], "F=1", Some(rule(most, "full")), Some(3));
        assert_eq!(found.sharding[0].gathers, gathers);
    }
}
