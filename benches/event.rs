//! How fast the event engine is, on one core: `cargo bench --bench event`. An element is an event: on the straight engine
//! the end of an op (as many as ops), on the general one also each message that left a link or arrived.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipesim::cost::{CostTable, OpTime, Summary};
use pipesim::graph::TaskGraph;
use pipesim::op::{Kind, Op};
use pipesim::placement::Placement;
use pipesim::schedule::{Programs, Schedule};
use pipesim::sim::event::{Config, Distribution, Jitter, Network, Plan, Processor, Sharing, Transfer, monte_carlo};
use std::hint::black_box;
use std::time::Duration;

/// 1F1B (PipeDream-flush).
fn one_f_one_b(p: u32, m: u32) -> TaskGraph {
    let mut programs = Programs::default();
    for r in 0..p {
        let warm_up = (p - 1 - r).min(m);
        let of = |kind, i| Op::new(kind, r, i);
        programs.ops.extend((0..warm_up).map(|i| of(Kind::F, i)));
        programs.ops.extend((0..m - warm_up).flat_map(|i| [of(Kind::F, warm_up + i), of(Kind::B, i)]));
        programs.ops.extend((m - warm_up..m).map(|i| of(Kind::B, i)));
        programs.finish(Vec::new());
    }
    graph("1f1b", Placement::linear(p), m, programs)
}

/// A device's program as it is written: the next micro-batch of a kind and chunk is the one after the last.
struct Writer<'a> {
    ops: &'a mut Vec<Op>,
    stages: [u32; 2],
    /// By kind and chunk.
    counts: [[u32; 2]; 3],
}

impl Writer<'_> {
    fn count(&self, kind: Kind, chunk: usize) -> u32 {
        self.counts[kind as usize][chunk]
    }

    fn run(&mut self, ops: &[(Kind, usize)]) {
        for &(kind, chunk) in ops {
            self.ops.push(Op::new(kind, self.stages[chunk], self.count(kind, chunk)));
            self.counts[kind as usize][chunk] += 1;
        }
    }
}

/// ZB-V (Qi et al., arXiv 2401.10241 section 6), for m of 2p or more.
fn zb_v(p: u32, m: u32) -> TaskGraph {
    use Kind::{F, I, W};
    let mut programs = Programs::default();
    for r in 0..p {
        let mut writer = Writer { ops: &mut programs.ops, stages: [r, 2 * p - 1 - r], counts: [[0; 2]; 3] };
        (0..2 * (p - r) - 1).for_each(|_| writer.run(&[(F, 0)]));
        (0..r).for_each(|_| writer.run(&[(F, 1), (F, 0)]));
        (0..p - r).for_each(|_| writer.run(&[(F, 1), (I, 1), (W, 1)]));
        while writer.count(F, 1) < writer.count(F, 0) || writer.count(F, 0) < m {
            if writer.count(F, 0) < m {
                writer.run(&[(F, 0)]);
            }
            writer.run(&[(I, 0), (W, 0), (F, 1), (I, 1), (W, 1)]);
        }
        (0..r).for_each(|_| writer.run(&[(I, 0), (I, 1)]));
        (0..p - r).for_each(|_| writer.run(&[(I, 0), (W, 0)]));
        for chunk in [1, 0] {
            while writer.count(W, chunk) < m {
                writer.run(&[(W, chunk)]);
            }
        }
        programs.finish(Vec::new());
    }
    graph("zb-v", Placement::zigzag("V", p, 2), m, programs)
}

fn graph(name: &str, placement: Placement, m: u32, programs: Programs) -> TaskGraph {
    let schedule = Schedule::new(name, placement, m, programs);
    schedule.validate().expect("a schedule");
    TaskGraph::new(schedule).expect("no circle")
}

fn costs(graph: &TaskGraph) -> CostTable {
    let summary = Summary { F: 1.0, I: 1.1, W: 0.8, B: 1.9, comm: 0.1, keep: 1.0 };
    CostTable::new(&graph.schedule().placement, (1000.0, "unit", 1_000_000_000), summary, |op| OpTime {
        duration: [1000, 1100, 800, 1900][op.kind() as usize],
        after: 0,
        arrival: 100,
    })
}

fn graphs() -> Vec<(&'static str, TaskGraph)> {
    vec![
        ("1f1b p=64 m=1024", one_f_one_b(64, 1024)),
        ("zb-v p=64 m=1024", zb_v(64, 1024)),
        ("zb-v p=8 m=64", zb_v(8, 64)),
    ]
}

fn configs() -> Vec<(&'static str, Config)> {
    let network = Network { transfer: Transfer::Ticks(50), ..Network::default() };
    let with = |sharing| Config { network: Network { sharing, ..network.clone() }, ..Config::default() };
    let jitter = Jitter { distribution: Distribution::LogNormal { sigma_per_mille: 100 }, seed: 1, sample: 0 };
    let pairs = (0..4).map(|pair| Processor { devices: vec![2 * pair, 2 * pair + 1], cores: 1 }).collect();
    vec![
        ("one-sided", Config::default()),
        ("jitter", Config { jitter: Some(jitter), ..Config::default() }),
        ("first come", with(Sharing::FirstComeFirstServed)),
        ("fair share", with(Sharing::FairShare)),
        ("buffered(2)", Config { delivery: "buffered(2)".parse().expect("a delivery"), ..Config::default() }),
        ("channel", Config { delivery: "channel:front-loaded".parse().expect("a delivery"), ..Config::default() }),
        ("two devices a core", Config { processors: pairs, ..Config::default() }),
    ]
}

/// Events a second of one simulation, on a graph that is there.
fn events(criterion: &mut Criterion) {
    for (name, graph) in graphs() {
        let costs = costs(&graph);
        let mut group = criterion.benchmark_group(name);
        for (label, config) in configs() {
            let plan = Plan::new(&graph, &costs, &config).expect("fits");
            let Ok(outcome) = plan.run(&mut ()) else { continue };
            group.throughput(Throughput::Elements(outcome.events));
            let id = BenchmarkId::new(label, format!("{:.2} events an op", outcome.events as f64 / graph.len() as f64));
            group.bench_function(id, |bencher| bencher.iter(|| black_box(&plan).run(&mut ()).map(|o| o.makespan())));
        }
        group.finish();
    }
}

/// Samples a second of a small schedule with jitter.
fn samples(criterion: &mut Criterion) {
    let graph = zb_v(4, 8);
    let (costs, (_, config)) = (costs(&graph), configs().swap_remove(1));
    let mut group = criterion.benchmark_group("monte carlo, zb-v p=4 m=8");
    group.throughput(Throughput::Elements(1000));
    group.bench_function("samples", |bencher| bencher.iter(|| monte_carlo(&graph, &costs, &config, 1000, 3)));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = events, samples
}
criterion_main!(benches);
