//! The event engine against the sweep, against golden files, and against cases worked out by hand.

use crate::support::{self, Dice, GoldenSchedule, graph_of, numbers, random_rows, valid_schedule};
use pipesim::costs::{CollectiveCosts, OpTime, SharedPuts};
use pipesim::graphs::standard_deliveries;
use pipesim::internals::lowering::Lowering;
use pipesim::internals::metrics::makespan;
use pipesim::internals::sim::event::{Prepared, Record, TransferTime, monte_carlo, simulate};
use pipesim::internals::sim::sweep_lasting;
use pipesim::schedules::{Files, Fsdp};
use pipesim::simulation::{
    Activity, Config, Doing, EventError, Jitter, Makespans, Network, Processor, Put, Scope, Sharing, critical_path,
};
use pipesim::{
    CostTable, Deadlock, Delivery, Host, Kind, Op, Overlap, Placement, Schedule, Setup, TaskGraph, check, simulation,
};

fn table(placement: &Placement, cost: impl FnMut(Op) -> OpTime) -> CostTable {
    support::table(placement, 1.0, cost)
}

/// F, I, W, B and the latency.
fn flat(placement: &Placement, durations: [u64; 4], arrival: u64) -> CostTable {
    table(placement, |op| OpTime { duration: durations[op.kind() as usize], after: 0, arrival })
}

fn random_placement(dice: &mut Dice) -> Placement {
    let devices = 1 + dice.below(6) as u32;
    match dice.below(5) {
        0 => Placement::linear(devices),
        1 => Placement::looped("loop", devices, 2 + dice.below(2) as u32),
        2 => Placement::zigzag("V", devices, 2),
        3 => Placement::bidirectional(devices + devices % 2, 1 + dice.below(2) as u32).unwrap(),
        _ => {
            let mut order: Vec<u32> = (0..2 * devices).map(|place| place % devices).collect();
            (1..order.len()).for_each(|i| order.swap(i, dice.below(i + 1)));
            Placement::new("any", devices, order).unwrap()
        }
    }
}

/// Which stages split their backward, what comes next and what is overlapped: all by chance.
fn random_schedule(dice: &mut Dice) -> Schedule {
    let (placement, m) = (random_placement(dice), 1 + dice.below(8) as u32);
    let split: Vec<bool> = (0..placement.stages()).map(|_| dice.below(2) == 0).collect();
    let splits = |stage, _| split[stage as usize];
    let rows = random_rows(&placement, m, (u32::MAX, true), splits, &mut |n| dice.below(n)).unwrap();
    valid_schedule(&placement, m, &rows)
}

fn random_costs(dice: &mut Dice, placement: &Placement) -> CostTable {
    let (most_after, most_arrival) = (dice.below(4) + 1, dice.below(30) + 1);
    table(placement, |_| OpTime {
        duration: dice.below(20) as u64,
        after: dice.below(most_after) as u64,
        arrival: dice.below(most_arrival) as u64,
    })
}

/// Adds gathers and reductions to half of the schedules.
fn with_collectives(dice: &mut Dice, schedule: Schedule, mut costs: CostTable) -> (Schedule, CostTable) {
    let max_active_stages = 2 + dice.below(2) as u32;
    let fsdp = Fsdp { max_active_stages, defer_reduce_grad_wait: dice.below(2) == 0, ..Fsdp::default() };
    let mut times = || (0..schedule.placement.stages()).map(|_| dice.below(25) as u64).collect();
    let collectives = CollectiveCosts { gathers: times(), reductions: times() };
    if dice.below(2) == 0 {
        return (schedule, costs);
    }
    let sharding = fsdp.sharding(&schedule).unwrap();
    costs.extras.collectives = Some(collectives);
    (schedule.with_sharding(Some(sharding)), costs)
}

/// Configurations in which nothing is shared and nothing queues: the first is simulated by a sweep, the others by events.
fn unhindered(devices: u32) -> [Config; 4] {
    let alone = |device| Processor { devices: vec![device], cores: 1, ..Processor::default() };
    [
        Config::default(),
        Config { processors: (0..devices).map(alone).collect(), ..Config::default() },
        Config { slots: Some(u32::MAX), ..Config::default() },
        Config { delivery: Delivery::Buffered(u32::MAX), ..Config::default() },
    ]
}

fn recorded(graph: &TaskGraph, costs: &CostTable, config: &Config) -> (Vec<Activity>, Record) {
    let mut record = Record::new(graph);
    let outcome = simulate(graph, costs, config, &mut record).unwrap();
    (outcome, record)
}

fn sweep_record(
    graph: &TaskGraph,
    costs: &CostTable,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
) -> (Vec<Activity>, Vec<(u64, u64)>) {
    let mut ops = vec![(0, 0); graph.len()];
    let devices = sweep_lasting(graph, costs, lasts, |index, start, end| ops[index] = (start, end));
    (devices, ops)
}

#[test]
fn agrees_with_the_sweep_on_random_schedules_to_the_tick() {
    let mut paired = 0;
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let schedule = random_schedule(&mut dice);
        let costs = random_costs(&mut dice, &schedule.placement);
        paired += usize::from(schedule.has_pairs());
        let (schedule, costs) = with_collectives(&mut dice, schedule, costs);
        for overlap in Overlap::ALL {
            let graph = TaskGraph::with_overlap(schedule.clone(), overlap).unwrap();
            // How long an op takes depends on all that it may depend on.
            let lasts = |index: usize, device: u32, start: u64, duration: u64| {
                duration + (index as u64 * 7 + start * 3 + u64::from(device)) % 5
            };
            let swept = sweep_record(&graph, &costs, lasts);
            for config in unhindered(graph.schedule().devices()) {
                let mut record = Record::new(&graph);
                let outcome = Prepared::new(&graph, &costs, &config).unwrap().run_lasting(lasts, &mut record).unwrap();
                assert_eq!((outcome, record.ops), swept, "seed {seed} {overlap:?} {config:?}");
                record.transfers.iter().for_each(|transfer| assert_eq!(transfer.queued, transfer.start));
            }
        }
    }
    assert!(paired > 100, "only {paired} schedules had pairs");
}

fn golden_named(class: &str, p: u32, v: u32, m: u32) -> Schedule {
    let all = GoldenSchedule::all();
    all.iter().find(|golden| golden.class() == class && golden.sizes() == [p, v, m]).unwrap().schedule()
}

#[test]
fn figures_of_the_golden_files() {
    let all = GoldenSchedule::all();
    for golden in &all {
        let (name, overlap) = (golden.name(), golden.overlap());
        let graph = TaskGraph::with_overlap(golden.schedule(), overlap).unwrap();
        let tenths = |value: f64| (value * 10.0).round() as u64;
        let costs = ["F", "I", "W", "B"].map(|kind| tenths(golden.cost(kind)));
        let costs = flat(&graph.schedule().placement, costs, tenths(golden.cost("comm")));
        let expected: Vec<u64> = numbers(&golden.entry["busy_per_rank"]).into_iter().map(tenths).collect();
        for config in unhindered(graph.schedule().devices()) {
            let outcome = simulate(&graph, &costs, &config, &mut ()).unwrap();
            assert_eq!(makespan(&outcome), tenths(golden.number("makespan")), "{name} {overlap:?}");
            let busy: Vec<u64> = outcome.iter().map(|device| device.busy).collect();
            assert_eq!(busy, expected, "{name} {overlap:?}");
        }
    }
    assert!(all.len() >= 400, "{}", all.len());
}

#[test]
fn scarce_resources_never_help_and_deadlocks_are_the_checkers() {
    let mut deadlocks = 0;
    for seed in 0..200 {
        let mut dice = Dice(1000 + seed);
        let overlap = Overlap::ALL[dice.below(4)];
        let schedule = random_schedule(&mut dice);
        let costs = random_costs(&mut dice, &schedule.placement);
        let graph = TaskGraph::with_overlap(schedule, overlap).unwrap();
        let transfer = 1 + dice.below(9) as u64;
        let run = |config: Config| simulate(&graph, &costs, &config, &mut ()).map(|outcome| makespan(&outcome));
        let network = |sharing, scope| Network { transfer, sharing, scope, ..Network::default() };
        let wide = Config { network: network(Sharing::Unlimited, Scope::Pair), ..Config::default() };
        let best = run(wide.clone()).unwrap();
        let mut worse: Vec<Config> = Vec::new();
        for scope in [Scope::Pair, Scope::Egress, Scope::Machine] {
            for sharing in [Sharing::FirstComeFirstServed, Sharing::FairShare] {
                worse.push(Config { network: network(sharing, scope), ..Config::default() });
            }
        }
        let devices: Vec<u32> = (0..graph.schedule().devices()).collect();
        worse
            .push(Config { processors: vec![Processor { devices, cores: 1, ..Processor::default() }], ..wide.clone() });
        worse.push(Config { overlap_per_mille: 1250, ..wide.clone() });
        for config in worse {
            let makespan = run(config.clone()).unwrap();
            assert!(makespan >= best, "seed {seed}: {makespan} < {best} under {config:?}");
        }
        // Slots and queues can stop it altogether; if not, they never make it faster. Whether they do, the checker proves.
        for delivery in standard_deliveries() {
            let verdict = check(&graph, delivery);
            match run(Config { delivery, ..wide.clone() }) {
                Ok(makespan) => assert!(makespan >= best && verdict.is_ok(), "seed {seed} {delivery}"),
                Err(EventError::Deadlock(deadlock)) => {
                    circle(&deadlock);
                    assert!(verdict.is_err(), "seed {seed} {delivery}: {deadlock}");
                    deadlocks += 1;
                }
                Err(other) => panic!("{other}"),
            }
            // PyTorch's order cannot deadlock on one queue: sends and receives are entered in pairs.
            assert!(delivery.to_string() != "channel:front-loaded" || verdict.is_ok(), "seed {seed}");
        }
        // As many slots as messages are as good as no limit.
        let all = Config { slots: Some(graph.schedule().microbatches), ..wide.clone() };
        assert_eq!(run(all).unwrap(), best, "seed {seed}");
    }
    assert!(deadlocks > 100, "{deadlocks}");
}

/// Each waits for the next, the last for the first.
fn circle(deadlock: &Deadlock) {
    let waits = &deadlock.waits;
    assert!(waits.len() >= 2, "{deadlock}");
    for (wait, next) in waits.iter().zip(waits.iter().cycle().skip(1)) {
        assert_eq!(wait.on, next.party, "{deadlock}");
    }
}

/// Two devices; device 0 has nothing to do but two forwards of 10, device 1 waits for them.
fn two_forwards() -> TaskGraph {
    graph_of(Placement::linear(2), 2, &["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"], Overlap::Atomic)
}

fn ends(record: &Record, graph: &TaskGraph, ops: &[&str]) -> Vec<u64> {
    let index = |op: &&str| graph.schedule().ops().iter().position(|o| *o == op.parse().unwrap()).unwrap();
    ops.iter().map(|op| record.ops[index(op)].1).collect()
}

#[test]
fn links_by_hand() {
    let graph = two_forwards();
    // Forwards of 10 on device 0, of 1 on device 1; a message occupies its link for 16, then travels for 3.
    let costs = table(&graph.schedule().placement, |op| {
        let duration = if op.kind() == Kind::F && op.stage() == 0 { 10 } else { 1 };
        OpTime { duration, after: 0, arrival: 3 }
    });
    let forwards_sharing = |sharing, contention| {
        let network = Network { transfer: 16, sharing, contention, ..Network::default() };
        let (_, record) = recorded(&graph, &costs, &Config { network, ..Config::default() });
        let mut transfers: Vec<TransferTime> = record.transfers.into_iter().filter(|t| t.op < 2).collect();
        transfers.sort_by_key(|transfer| transfer.op);
        transfers.iter().map(|t| (t.queued, t.start, t.end)).collect::<Vec<_>>()
    };
    let forwards = |sharing| forwards_sharing(sharing, Vec::new());
    assert_eq!(forwards(Sharing::Unlimited), [(10, 10, 29), (20, 20, 39)]);
    assert_eq!(forwards(Sharing::FirstComeFirstServed), [(10, 10, 29), (20, 26, 45)]);
    // From 20 on both share: the first has 6 left, through at 32; the second then has 10 left, through at 42.
    assert_eq!(forwards(Sharing::FairShare), [(10, 10, 35), (20, 20, 45)]);
    // Where two take 1.5 times as long: the 6 that are left take 9, and the second then has 10 left.
    assert_eq!(forwards_sharing(Sharing::FairShare, vec![1000, 1500]), [(10, 10, 32), (20, 20, 42)]);
    let helps = Network { contention: vec![900], ..Network::default() };
    let refused = simulate(&graph, &costs, &Config { network: helps, ..Config::default() }, &mut ());
    assert!(matches!(refused, Err(EventError::Config(_))));
}

/// Links on which puts that are under way at the same time take longer, as the costs' `arrival` (and `after`) know them.
fn shared_links(transfer: u64, contention: Vec<u32>, put: Put) -> Network {
    Network { transfer, sharing: Sharing::FairShare, scope: Scope::Machine, contention, put }
}

#[test]
fn puts_at_the_same_time_hold_their_senders_up_longer() {
    // Ops of 100, puts of 40, which arrive 10 later. 0F1 runs 140..240, 1F0 150..250; 1F1 and 2F0 wait for their puts.
    let rows = ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2F1 2B0 2B1"];
    let graph = graph_of(Placement::linear(3), 2, &rows, Overlap::Atomic);
    let placement = &graph.schedule().placement;
    let ends_of = |contention, put| {
        let after = if put == Put::Holding { 40 } else { 0 };
        let costs = table(placement, |op| {
            let after = if placement.leaves_device(op) { after } else { 0 };
            OpTime { duration: 100, after, arrival: 50 }
        });
        let network = shared_links(40, contention, put);
        let (_, record) = recorded(&graph, &costs, &Config { network, ..Config::default() });
        ends(&record, &graph, &["0F1", "1F0", "1F1", "2F0"])
    };
    assert_eq!(ends_of(vec![1000, 1000], Put::Holding), [240, 250, 390, 400]);
    // Of the first 30 are left at 250, which take 45; then the second has 10 left: they are through at 295 and 305.
    assert_eq!(ends_of(vec![1000, 1500], Put::Holding), [240, 250, 405, 415]);
    // A sender that computes on is not held up: 0F1's put from 200 to 240 is over when 1F0's begins at 250.
    assert_eq!(ends_of(vec![1000, 1500], Put::Beside), [200, 250, 350, 400]);
    let network = shared_links(40, Vec::new(), Put::Holding);
    for config in [
        Config { delivery: Delivery::Buffered(1), ..Config::default() },
        Config { slots: Some(1), ..Config::default() },
    ] {
        let costs = flat(placement, [10; 4], 50);
        let refused = simulate(&graph, &costs, &Config { network: network.clone(), ..config }, &mut ());
        assert!(matches!(refused, Err(EventError::Config(_))), "{refused:?}");
    }
}

#[test]
fn an_egress_port_is_shared_by_all_that_leaves_a_device() {
    // 1F takes 40, so that device 1 ends 1F1 at 89 and 1B0, whose gradient is there long before, at 90: a message each way.
    let rows = ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2B0 2F1 2B1"];
    let graph = graph_of(Placement::linear(3), 2, &rows, Overlap::Atomic);
    let costs = table(&graph.schedule().placement, |op| {
        let duration = if op.kind() == Kind::F && op.stage() == 1 { 40 } else { 1 };
        OpTime { duration, ..OpTime::default() }
    });
    let times = |scope| {
        let network = Network { transfer: 8, sharing: Sharing::FirstComeFirstServed, scope, ..Network::default() };
        let (_, record) = recorded(&graph, &costs, &Config { network, ..Config::default() });
        let of = |op: &str| {
            let index = graph.schedule().ops().iter().position(|o| *o == op.parse().unwrap()).unwrap();
            let transfer = record.transfers.iter().find(|transfer| transfer.op == index).unwrap();
            (transfer.queued, transfer.start, transfer.end)
        };
        [of("1F0"), of("1F1"), of("1B0")]
    };
    // 1F0 leaves 49..57, 1F1 89..97; 2F0 57..58, 2B0 58..59, there at 67; 1B0 89..90: its gradient goes another way.
    assert_eq!(times(Scope::Pair), [(49, 49, 57), (89, 89, 97), (90, 90, 98)]);
    assert_eq!(times(Scope::Egress), [(49, 49, 57), (89, 89, 97), (90, 97, 105)]);
}

#[test]
fn shared_processors_by_hand() {
    // One device a stage, one micro-batch: never two ops at once, so one core for all is as good as one each.
    let naive = graph_of(Placement::linear(3), 1, &["0F0 0B0", "1F0 1B0", "2F0 2B0"], Overlap::Atomic);
    let costs = flat(&naive.schedule().placement, [10, 10, 10, 20], 3);
    let shared = |graph: &TaskGraph, costs: &CostTable, cores, per_mille| {
        let devices = (0..graph.schedule().devices()).collect();
        let processors = vec![Processor { devices, cores, ..Processor::default() }];
        let config = Config { processors, overlap_per_mille: per_mille, ..Config::default() };
        let (outcome, record) = recorded(graph, costs, &config);
        (makespan(&outcome), record)
    };
    assert_eq!(shared(&naive, &costs, 1, 1000).0, 3 * 30 + 4 * 3);
    // gpipe's forwards on two devices that share one core, no latency: 0F0 alone 0..10; then 0F1 and 1F0 at half speed
    // 10..30; then 1F1 alone 30..40.
    let graph = graph_of(Placement::linear(2), 2, &["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"], Overlap::Atomic);
    let costs = flat(&graph.schedule().placement, [10, 10, 10, 10], 0);
    let (makespan, record) = shared(&graph, &costs, 1, 1000);
    assert_eq!(ends(&record, &graph, &["0F0", "0F1", "1F0", "1F1"]), [10, 30, 30, 40]);
    assert_eq!(makespan, 80); // one core does 8 ops of 10 and never idles
    assert_eq!(shared(&graph, &costs, 2, 1000).0, 60); // two cores for two devices: as if each had its own
}

#[test]
fn neighbours_slow_each_other_down_while_both_compute() {
    // gpipe's forwards of 2, backwards of 4, no latency: 0F1 beside 1F0 and 0B0 beside 1B1, the rest alone. With a factor f for
    // two busy cores: 2 + 2f + 2 + 4 + 4f + 4.
    let graph = graph_of(Placement::linear(2), 2, &["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"], Overlap::Atomic);
    let costs = flat(&graph.schedule().placement, [2000, 2000, 2000, 4000], 0);
    let takes = |graph: &TaskGraph, costs: &CostTable, cores, contention| {
        let devices = (0..graph.schedule().devices()).collect();
        let config = Config { processors: vec![Processor { devices, cores, contention }], ..Config::default() };
        makespan(&simulate(graph, costs, &config, &mut ()).unwrap())
    };
    assert_eq!(takes(&graph, &costs, 2, vec![1000, 1250]), 12_000 + 2500 + 5000);
    // On one core never two compute, whatever neighbours would cost; nor on two where one waits for the other.
    assert_eq!(takes(&graph, &costs, 1, vec![1000, 1250]), 24_000);
    let naive = graph_of(Placement::linear(3), 1, &["0F0 0B0", "1F0 1B0", "2F0 2B0"], Overlap::Atomic);
    let costs = flat(&naive.schedule().placement, [10, 10, 10, 20], 3);
    assert_eq!(takes(&naive, &costs, 3, vec![1000, 1250, 2000]), 3 * 30 + 4 * 3);
    let config = Config {
        processors: vec![Processor { devices: vec![0], cores: 1, contention: vec![900] }],
        ..Config::default()
    };
    assert!(matches!(simulate(&naive, &costs, &config, &mut ()), Err(EventError::Config(_))));
}

#[test]
fn what_puts_cost_each_other_is_in_predictions_from_measured_costs() {
    let mut slower = 0;
    for seed in 0..150 {
        let mut dice = Dice(11_000 + seed);
        let graph = TaskGraph::new(random_schedule(&mut dice)).unwrap();
        let placement = &graph.schedule().placement;
        let (costs, put, beside_compute) =
            (random_costs(&mut dice, placement), 1 + dice.below(12) as u64, seed % 2 == 0);
        let costs = table(placement, |op| {
            let (time, put) = (costs.of(op), if placement.leaves_device(op) { put } else { 0 });
            let after = time.after + if beside_compute { 0 } else { put };
            OpTime { after, arrival: time.arrival + put, ..time }
        });
        let mut costs = costs.finer(1000);
        let alone = simulation::predict(&graph, &costs, &Setup::default()).unwrap().makespan();
        let (duration, per_mille) = (1000 * put, vec![1000, 1500, 1700]);
        costs.effects.puts = Some(SharedPuts { duration, beside_compute, per_mille: per_mille.clone() });
        let predicted = simulation::predict(&graph, &costs, &Setup::default()).unwrap();
        let network = shared_links(duration, per_mille, if beside_compute { Put::Beside } else { Put::Holding });
        let machine = Config { network, ..Config::default() };
        let simulated = simulate(&graph, &costs, &machine, &mut ()).unwrap();
        assert_eq!((predicted.makespan(), predicted.devices()), (makespan(&simulated), &*simulated), "seed {seed}");
        slower += usize::from(predicted.makespan() > alone);
        // Idle time is told whole, and the critical path has no hole.
        let metrics = predicted.metrics();
        let idle: f64 = metrics.per_device.iter().map(|device| device.idle).sum();
        let told: f64 = predicted.idle().iter().map(|span| span.end - span.start).sum();
        assert!((idle - told).abs() < 1e-6 * (1.0 + idle), "seed {seed}: {told} of {idle}");
        let path = critical_path(&graph, &costs, &predicted.op_times());
        assert!(path.first().is_none_or(|piece| piece.start == 0), "seed {seed}");
        assert!(path.windows(2).all(|pair| pair[0].end == pair[1].start), "seed {seed}");
        assert!(path.last().is_none_or(|piece| piece.end == predicted.makespan()), "seed {seed}");
        let slack = simulation::slacks(&graph, &costs, &predicted.op_times(), predicted.durations().as_deref());
        for piece in &path {
            if let Doing::Running(op) = piece.doing {
                assert_eq!(slack[op], 0, "seed {seed}: what the makespan hangs on has no slack");
            }
        }
        // Where something else is said of deliveries, the links are as they are.
        let slots = Config { slots: Some(u32::MAX), ..Config::default() };
        let setup = Setup { machine: Some(slots), ..Setup::default() };
        assert_eq!(simulation::predict(&graph, &costs, &setup).unwrap().makespan(), alone, "seed {seed}");
    }
    assert!(slower > 30, "{slower}");
}

#[test]
fn contention_lies_between_alone_and_its_factor() {
    for seed in 0..100 {
        let mut dice = Dice(7000 + seed);
        let graph = TaskGraph::new(random_schedule(&mut dice)).unwrap();
        let costs = random_costs(&mut dice, &graph.schedule().placement);
        let (devices, fine) = (graph.schedule().devices(), costs.finer(1000));
        let takes = |contention: &[u32]| {
            let processors =
                vec![Processor { devices: (0..devices).collect(), cores: devices, contention: contention.to_vec() }];
            makespan(&simulate(&graph, &fine, &Config { processors, ..Config::default() }, &mut ()).unwrap())
        };
        let alone = takes(&[]);
        assert_eq!(alone, takes(&[1000, 1000]));
        let (contended, slack) = (takes(&[1000, 1300, 1400]), graph.len() as u64);
        assert!(contended >= alone && contended <= alone * 14 / 10 + slack, "seed {seed}: {contended} of {alone}");
        // Every op slower by the same factor, whoever runs, is every op's cost times it.
        let always = takes(&[1300]);
        let stretched = table(&graph.schedule().placement, |op| {
            let OpTime { duration, after, arrival } = costs.of(op);
            OpTime { duration: duration * 1300, after: after * 1000, arrival: arrival * 1000 }
        });
        let expected = makespan(&simulate(&graph, &stretched, &Config::default(), &mut ()).unwrap());
        assert!(always.abs_diff(expected) <= slack, "seed {seed}: {always} for {expected}");
    }
}

#[test]
fn a_shared_core_that_never_idles_takes_the_sum_of_all_work() {
    for seed in 0..100 {
        let mut dice = Dice(5000 + seed);
        let schedule = random_schedule(&mut dice);
        let graph = TaskGraph::new(schedule).unwrap();
        // No latency and no hold-up: while ops are left, some device can always run one.
        let costs =
            table(&graph.schedule().placement, |_| OpTime { duration: dice.below(20) as u64, ..OpTime::default() });
        let devices: Vec<u32> = (0..graph.schedule().devices()).collect();
        let work: u64 = graph.schedule().ops().iter().map(|&op| costs.of(op).duration).sum();
        let one =
            Config { processors: vec![Processor { devices, cores: 1, ..Processor::default() }], ..Config::default() };
        let makespan = makespan(&simulate(&graph, &costs.finer(1000), &one, &mut ()).unwrap());
        // An op that ends within a tick is noted at the tick's end: less than one tick an op.
        let sum = work * 1000;
        assert!((sum..=sum + graph.len() as u64).contains(&makespan), "seed {seed}: {makespan} of {sum}");
    }
}

#[test]
fn overlap_slows_down_what_runs_beside_a_transfer() {
    // 0F0 0..10; its message is on its way 10..40, while 0F1 runs at 1/1.5 of its speed: 10..25. Its message then keeps
    // the link of device 0 in use until 55; 1F0 40..55 beside it; from then on 1F1 alone, but for what it sends.
    let graph = two_forwards();
    let costs = flat(&graph.schedule().placement, [10, 10, 10, 10], 30);
    let config = Config { overlap_per_mille: 1500, ..Config::default() };
    let (_, record) = recorded(&graph, &costs, &config);
    assert_eq!(ends(&record, &graph, &["0F0", "0F1", "1F0", "1F1", "1B0"]), [10, 25, 55, 65, 75]);
    // 1B1 runs 75..90 beside the gradient of 1B0 (75..105); 0B0 105..120 beside that of 1B1 (90..120); 0B1 alone.
    assert_eq!(ends(&record, &graph, &["1B1", "0B0", "0B1"]), [90, 120, 130]);
}

#[test]
fn slots_by_hand() {
    // Device 0's forwards take 10, device 1's 100: with one slot the second message waits until 1F0 has ended at 110, and
    // the third until 1F1 has.
    let rows = ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"];
    let graph = graph_of(Placement::linear(2), 3, &rows, Overlap::Atomic);
    let costs = table(&graph.schedule().placement, |op| {
        let duration = if op.stage() == 0 { 10 } else { 100 };
        OpTime { duration, after: 0, arrival: 5 }
    });
    let starts = |config: Config| {
        let (_, record) = recorded(&graph, &costs, &config);
        let mut sent: Vec<_> = record.transfers.iter().filter(|t| t.op < 3).map(|t| (t.op, t.start)).collect();
        sent.sort_unstable();
        sent.into_iter().map(|(_, start)| start).collect::<Vec<_>>()
    };
    assert_eq!(starts(Config { slots: Some(1), ..Config::default() }), [10, 115, 220]);
    assert_eq!(starts(Config { slots: Some(2), ..Config::default() }), [10, 20, 115]);
    assert_eq!(starts(Config { delivery: Delivery::Buffered(2), ..Config::default() }), [10, 20, 115]);
    assert_eq!(starts(Config::default()), [10, 20, 30]);
}

#[test]
fn buffered_sends_of_one_device_hold_each_other_up() {
    // Three devices, each but the middle one idle: device 1 sends forwards down and gradients up through one queue. With
    // one slot to stage 2, its second activation waits for 2F0 to end, and the gradient behind it waits too.
    let rows = ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2", "2F0 2B0 2F1 2B1 2F2 2B2"];
    let graph = graph_of(Placement::linear(3), 3, &rows, Overlap::Atomic);
    let costs = flat(&graph.schedule().placement, [1, 1, 1, 1], 0);
    let run = |text: &str| {
        let config = Config { delivery: text.parse().unwrap(), ..Config::default() };
        makespan(&simulate(&graph, &costs, &config, &mut ()).unwrap())
    };
    assert!(run("buffered(1)") >= run("buffered(3)"));
    assert_eq!(run("buffered(3)"), run("one-sided"));
}

#[test]
fn a_channel_that_deadlocks_says_who_waits_for_whom() {
    // 1F1B with one queue a device, sends and receives in program order: device 0 offers 0F1 while device 1 offers the
    // gradient of 1B0, and neither receives. This is why Megatron-LM sends and receives both at once.
    let rows = ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"];
    let graph = graph_of(Placement::linear(2), 3, &rows, Overlap::Atomic);
    let costs = flat(&graph.schedule().placement, [10, 10, 10, 20], 1);
    let run = |text: &str| {
        let config = Config { delivery: text.parse().unwrap(), ..Config::default() };
        simulate(&graph, &costs, &config, &mut ())
    };
    for text in ["channel", "channel:per-peer"] {
        let Err(EventError::Deadlock(deadlock)) = run(text) else { panic!("{text} must deadlock") };
        circle(&deadlock);
        assert_eq!(deadlock.waits.len(), 2, "{deadlock}");
        for line in [
            "device 0, 0SEND_F1 at the head of its {} waits for 1RECV_F1, behind 1SEND_B0",
            "device 1, 1SEND_B0 at the head of its {} waits for 0RECV_B0, behind 0SEND_F1",
        ] {
            let names = ["communication queue", "queue with device 1", "queue with device 0"];
            let said = names.iter().any(|name| deadlock.to_string().contains(&line.replace("{}", name)));
            assert!(said, "{line} is not in {deadlock}");
        }
    }
    let free = makespan(&run("one-sided").unwrap());
    for text in ["channel:per-direction", "channel:front-loaded", "buffered(1)"] {
        assert!(makespan(&run(text).unwrap()) >= free, "{text}");
    }
}

#[test]
fn a_batch_begins_when_both_sides_stand_and_is_there_as_a_whole() {
    let rows = ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"];
    let graph = graph_of(Placement::linear(2), 3, &rows, Overlap::Atomic);
    let costs = flat(&graph.schedule().placement, [10, 10, 10, 20], 1);
    let starts = |text: &str| {
        let config = Config { delivery: text.parse().unwrap(), ..Config::default() };
        recorded(&graph, &costs, &config).1.ops.iter().map(|op| op.0).collect::<Vec<u64>>()
    };
    // Device 0 has 0SEND_F1 with 0RECV_B0 from 20 on, device 1 has 1SEND_B0 with 1RECV_F1 from 41 on.
    assert_eq!(starts("batched"), [0, 10, 42, 62, 73, 104, 11, 21, 42, 52, 73, 83]);
    assert_eq!(starts("one-sided"), [0, 10, 42, 62, 72, 104, 11, 21, 41, 51, 73, 83]);
    for preset in ["megatron", "pytorch", "pytorch:2.11"] {
        assert_eq!(starts(preset), starts("batched"), "{preset}");
    }
}

#[test]
fn too_few_slots_deadlock_where_the_receiver_wants_another_message() {
    let graph = graph_of(Placement::linear(2), 2, &["0F0 0F1 0B0 0B1", "1F1 1F0 1B0 1B1"], Overlap::Atomic);
    let costs = flat(&graph.schedule().placement, [1, 1, 1, 1], 0);
    for config in [
        Config { slots: Some(1), ..Config::default() },
        Config { delivery: Delivery::Buffered(1), ..Config::default() },
    ] {
        let Err(EventError::Deadlock(deadlock)) = simulate(&graph, &costs, &config, &mut ()) else { panic!() };
        circle(&deadlock);
        let text = deadlock.to_string();
        assert_eq!(deadlock.waits.len(), 2, "{text}");
        assert!(text.contains("device 1 at op number 0 (1F1) waits for 0SEND_F1, at the head of device 0's"), "{text}");
        let slot = "waits for a free slot of its channel; the next is freed by 1F0, which stands later";
        assert!(text.contains(slot), "{text}");
    }
}

/// Makespans in hundredths of a unit (F = I = W = 1 a device), interleaved 1F1B over v chunks.
fn interleaved(v: u64, comm_hundredths: u64, delivery: &str) -> u64 {
    let class = if v == 1 { "Schedule1F1B" } else { "ScheduleInterleaved1F1B" };
    let graph = TaskGraph::new(golden_named(class, 4, v as u32, 8)).unwrap();
    let chunk = 100 / v;
    let costs = flat(&graph.schedule().placement, [chunk, chunk, chunk, 2 * chunk], comm_hundredths);
    let config = Config { delivery: delivery.parse().unwrap(), ..Config::default() };
    makespan(&simulate(&graph, &costs, &config, &mut ()).unwrap())
}

#[test]
fn front_loaded_receives_block_sends() {
    // pytorch/pytorch issues 172668 and 188833: in interleaved schedules a receive that is entered long before its data
    // is there keeps later sends of the queue waiting. A plain 1F1B has no such receives in its warm-up.
    println!("p=4 m=8, makespan over one-sided's (F=I=W=1 a device)");
    println!(
        "{:>3} {:>5} {:>10} {:>14} {:>14} {:>14}",
        "v", "comm", "one-sided", "front-loaded", "...per-peer", "per-direction"
    );
    for v in [1, 2] {
        for comm in [0, 10, 20, 50, 100] {
            let ways = ["one-sided", "channel:front-loaded", "channel:per-peer,front-loaded", "channel:per-direction"];
            let [free, fronted, per_peer, just_in_time] = ways.map(|delivery| interleaved(v, comm, delivery));
            let over = |makespan: u64| makespan as f64 / free as f64;
            let (a, b, c) = (over(fronted), over(per_peer), over(just_in_time));
            println!("{v:>3} {:>5} {:>10} {a:>14.4} {b:>14.4} {c:>14.4}", comm as f64 / 100.0, free as f64 / 100.0);
            assert!(fronted >= free && just_in_time >= free && per_peer >= free);
            assert!(v == 1 || fronted > free, "interleaved: the stall is there even at comm 0");
        }
    }
}

#[test]
fn front_loading_is_pytorchs() {
    // The sends and receives of the program printed in pytorch/pytorch issue 172668: what the simulated queues hold.
    let rows = ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"];
    let printed = [
        "0SEND_F0 2RECV_F0 0SEND_F1 2RECV_F1 2SEND_F0 2SEND_F1 2RECV_B0 2SEND_B0 2RECV_B1 2SEND_B1 0RECV_B0 0RECV_B1",
        "1RECV_F0 1SEND_F0 1RECV_F1 1SEND_F1 3RECV_F0 3RECV_F1 3SEND_B0 1RECV_B0 3SEND_B1 1RECV_B1 1SEND_B0 1SEND_B1",
    ];
    let graph = graph_of(Placement::looped("loop", 2, 2), 2, &rows, Overlap::Atomic);
    let lowering = Lowering::new(&graph, "channel:front-loaded".parse().unwrap());
    let ours: Vec<String> = lowering
        .queues()
        .iter()
        .map(|queue| queue.entries.iter().map(|entry| entry.name(&graph)).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(ours, printed);
}

#[test]
fn jitter_is_the_seeds_alone() {
    let graph = TaskGraph::new(golden_named("ScheduleInterleaved1F1B", 4, 2, 8)).unwrap();
    let costs = flat(&graph.schedule().placement, [1000, 1000, 1000, 2000], 100);
    let jitter = |sigma_per_mille, seed, sample| Config {
        jitter: Some(Jitter { sigma_per_mille, seed, sample }),
        ..Config::default()
    };
    let ops = |config: &Config| {
        let (_, record) = recorded(&graph, &costs, config);
        record.ops.iter().map(|(start, end)| end - start).collect::<Vec<u64>>()
    };
    // Other links, other order of events: same durations.
    let one = jitter(100, 1, 2);
    let network = Network { transfer: 300, sharing: Sharing::FairShare, ..Network::default() };
    assert_eq!(ops(&one), ops(&Config { network, ..one.clone() }));
    assert_eq!(ops(&one), ops(&one.clone()));
    assert_ne!(ops(&one), ops(&jitter(100, 1, 3)));
    assert_ne!(ops(&one), ops(&jitter(100, 2, 2)));
    let calm = jitter(0, 1, 2);
    assert_eq!(ops(&calm), ops(&Config::default()));
    let still = spread(&graph, &costs, &calm, 10).unwrap();
    let swept = makespan(&simulate(&graph, &costs, &Config::default(), &mut ()).unwrap());
    assert_eq!((still.mean, still.p5, still.p50, still.p95, still.p99), (swept, swept, swept, swept, swept));
    // Every sample of the distribution is the simulation of that sample.
    let all = spread(&graph, &costs, &jitter(100, 9, 2), 40).unwrap();
    let mut each: Vec<u64> =
        (0..40).map(|sample| makespan(&simulate(&graph, &costs, &jitter(100, 9, sample), &mut ()).unwrap())).collect();
    each.sort_unstable();
    assert_eq!((all.p5, all.p50, all.p95, all.p99), (each[1], each[19], each[37], each[39]));
    assert!(all.p50 > swept, "on average a pipeline with jitter waits for the slowest");
}

/// The makespans of so many samples, on all cores.
fn spread(graph: &TaskGraph, costs: &CostTable, config: &Config, samples: u32) -> Result<Makespans, EventError> {
    let prepared = Prepared::new(graph, costs, config)?;
    let found = monte_carlo(&prepared, |_, _, duration| duration, samples, &|count, work| Files.each(count, work))?;
    let backwards = |count, work: &(dyn Fn(usize) + Sync)| (0..count).rev().for_each(work);
    let alone = monte_carlo(&prepared, |_, _, duration| duration, samples, &backwards)?;
    assert_eq!(found, alone, "whoever computes a sample, and when");
    Ok(found)
}

#[test]
fn a_sum_of_many_is_normal() {
    // One device, 2n ops of 10000, log-normal with a sigma of 20 %: mean and quantiles of the sum by the central limit theorem.
    let n = 50;
    let row = (0..n).flat_map(|i| [Op::new(Kind::F, 0, i), Op::new(Kind::B, 0, i)]).collect();
    let graph = TaskGraph::new(valid_schedule(&Placement::linear(1), n, &[row])).unwrap();
    let costs = flat(&graph.schedule().placement, [10_000; 4], 0);
    let config = Config { jitter: Some(Jitter { sigma_per_mille: 200, seed: 11, sample: 0 }), ..Config::default() };
    let makespans = spread(&graph, &costs, &config, 4000).unwrap();
    let (mean, deviation) = (1e6, 10_000.0 * (0.2_f64.powi(2).exp() - 1.0).sqrt() * 10.0);
    let near =
        |found: u64, z: f64| assert!((found as f64 - mean - z * deviation).abs() < 0.12 * deviation, "{found} {z}");
    near(makespans.mean, 0.0);
    near(makespans.p5, -1.645);
    near(makespans.p50, 0.0);
    near(makespans.p95, 1.645);
    near(makespans.p99, 2.326);
}

#[test]
fn what_does_not_fit_is_refused() {
    let graph = two_forwards();
    let costs = flat(&graph.schedule().placement, [1, 1, 1, 1], 0);
    let processor = |devices: &[u32], cores| Processor { devices: devices.to_vec(), cores, ..Processor::default() };
    let slotted = Config { slots: Some(1), delivery: Delivery::Buffered(1), ..Config::default() };
    for config in [
        Config { overlap_per_mille: 999, ..Config::default() },
        Config { slots: Some(0), ..Config::default() },
        Config { delivery: Delivery::Buffered(0), ..Config::default() },
        slotted,
        Config { processors: vec![processor(&[0, 1], 0)], ..Config::default() },
        Config { processors: vec![processor(&[2], 1)], ..Config::default() },
        Config { processors: vec![processor(&[0], 1), processor(&[0], 1)], ..Config::default() },
    ] {
        let error = simulate(&graph, &costs, &config, &mut ()).unwrap_err();
        assert!(matches!(error, EventError::Config(_)), "{config:?}: {error}");
    }
    let long = flat(&graph.schedule().placement, [1 << 61, 1, 1, 1], 0);
    assert_eq!(simulate(&graph, &long, &Config::default(), &mut ()).unwrap_err(), EventError::Overflow);
    let slow = Config { network: Network { transfer: u64::MAX, ..Network::default() }, ..Config::default() };
    assert_eq!(simulate(&graph, &costs, &slow, &mut ()).unwrap_err(), EventError::Overflow);
    assert!(spread(&graph, &costs, &Config::default(), 0).is_err());
}
