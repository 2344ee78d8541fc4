//! Speed of simulation and search on one core: `cargo bench`.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipesim::costs::{Analytic, Estimate, Platform, Slow};
use pipesim::internals::sim::event::{Prepared, monte_carlo};
use pipesim::schedules::{Order, order_ops};
use pipesim::simulation::{Activity, Config, Jitter, Network, Processor, Sharing};
use pipesim::{CostTable, GivenCosts, ParallelConfig, Selection, Setup, TaskGraph, models, simulation};
use std::hint::black_box;
use std::time::Duration;

fn order(name: &str, devices: u32, microbatches: u32) -> Order {
    Selection::new(devices, microbatches).order(name).expect("valid").order
}

fn graph(name: &str, devices: u32, microbatches: u32) -> TaskGraph {
    TaskGraph::new(order(name, devices, microbatches).fixed().expect("fixed")).expect("no cycle")
}

fn costs(graph: &TaskGraph) -> CostTable {
    let costs: GivenCosts = "F=1,I=1.1,W=0.8,comm=0.1".parse().expect("costs");
    let schedule = graph.schedule();
    costs.table(&schedule.placement, schedule.microbatches, &Slow::new()).expect("small")
}

fn makespan(graph: &TaskGraph, costs: &CostTable) -> u64 {
    simulation::sweep(graph, costs).iter().map(|device: &Activity| device.last_end).max().unwrap_or(0)
}

/// Ops per second of the sweep alone, on a graph that exists already.
fn sweep(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sweep");
    for (name, devices, microbatches) in [("zb-v", 8, 64), ("1f1b", 64, 1024), ("zb-v", 64, 1024)] {
        let graph = graph(name, devices, microbatches);
        let costs = costs(&graph);
        group.throughput(Throughput::Elements(graph.len() as u64));
        group.bench_function(BenchmarkId::new(name, format!("p={devices} m={microbatches}")), |bencher| {
            bencher.iter(|| makespan(black_box(&graph), black_box(&costs)));
        });
    }
}

/// The task graph's own topological order, from the schedule, next to petgraph's on the graph.
fn topological_order(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("topological order");
    for (devices, microbatches) in [(8, 64), (64, 1024)] {
        let schedule = order("1f1b", devices, microbatches).fixed().expect("fixed");
        let graph = TaskGraph::new(schedule.clone()).expect("no cycle");
        group.throughput(Throughput::Elements(graph.len() as u64));
        let size = format!("1f1b p={devices} m={microbatches}");
        group.bench_function(BenchmarkId::new("TaskGraph::new", &size), |bencher| {
            bencher.iter_batched(|| schedule.clone(), TaskGraph::new, BatchSize::LargeInput);
        });
        group.bench_function(BenchmarkId::new("petgraph::algo::toposort", &size), |bencher| {
            bencher.iter(|| petgraph::algo::toposort(black_box(&graph), None));
        });
    }
    group.finish();
}

/// Ops per second from the schedule's text to the makespan: parse, expand, check, build, sweep.
fn text_to_makespan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("text to makespan");
    for (name, devices, microbatches) in [("1f1b", 8, 64), ("zb-v", 8, 64), ("zb-v", 64, 1024)] {
        group.throughput(Throughput::Elements(graph(name, devices, microbatches).len() as u64));
        group.bench_function(BenchmarkId::new(name, format!("p={devices} m={microbatches}")), |bencher| {
            bencher.iter(|| {
                let graph = graph(black_box(name), devices, microbatches);
                makespan(&graph, &costs(&graph))
            });
        });
    }
}

/// The computations of `pipesim predict --stages 4 --micro 8`, without drawing.
fn four_schedules(criterion: &mut Criterion) {
    criterion.bench_function("predict naive, gpipe, 1f1b, zb-v/p=4 m=8", |bencher| {
        bencher.iter(|| {
            ["naive", "gpipe", "1f1b", "zb-v"].map(|name| {
                let graph = graph(black_box(name), 4, 8);
                simulation::predict(&graph, &costs(&graph), &Setup::default()).expect("no machine").metrics().makespan
            })
        });
    });
}

fn configs() -> Vec<(&'static str, Config)> {
    let network = Network { transfer: 50, ..Network::default() };
    let with = |sharing| Config { network: Network { sharing, ..network.clone() }, ..Config::default() };
    let jitter = Jitter { sigma_per_mille: 100, seed: 1, sample: 0 };
    let pairs = (0..4)
        .map(|pair| Processor { devices: vec![2 * pair, 2 * pair + 1], cores: 1, ..Processor::default() })
        .collect();
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

/// Ops per second of one simulation under a configuration, on a prepared graph.
fn events(criterion: &mut Criterion) {
    for (name, devices, microbatches) in [("1f1b", 64, 1024), ("zb-v", 64, 1024), ("zb-v", 8, 64)] {
        let graph = graph(name, devices, microbatches);
        let costs = costs(&graph);
        let mut group = criterion.benchmark_group(format!("events of {name} p={devices} m={microbatches}"));
        for (label, config) in configs() {
            let prepared = Prepared::new(&graph, &costs, &config).expect("fits");
            if prepared.run(&mut ()).is_err() {
                continue; // a deadlock
            }
            group.throughput(Throughput::Elements(graph.len() as u64));
            group.bench_function(label, |bencher| bencher.iter(|| black_box(&prepared).run(&mut ())));
        }
        group.finish();
    }
}

/// Samples per second of a small schedule with jitter.
fn samples(criterion: &mut Criterion) {
    let graph = graph("zb-v", 4, 8);
    let (costs, (_, config)) = (costs(&graph), configs().swap_remove(1));
    let mut group = criterion.benchmark_group("monte carlo");
    group.throughput(Throughput::Elements(1000));
    group.bench_function("zb-v p=4 m=8", |bencher| {
        let prepared = Prepared::new(&graph, &costs, &config).expect("fits");
        bencher
            .iter(|| monte_carlo(&prepared, |_, _, duration| duration, 1000, &|count, work| (0..count).for_each(work)))
    });
    group.finish();
}

/// Searches for the best order.
fn searches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("search");
    group.sample_size(10);
    for (name, devices, microbatches) in [("zb-2p", 8, 32), ("zb-v-greedy", 8, 32), ("v-half", 8, 32)] {
        let Order::Open(open) = order(name, devices, microbatches) else { continue };
        let costs: GivenCosts = "F=18.5,I=18.1,W=9.3,comm=0.6".parse().expect("costs");
        let costs = costs.table(&open.placement, microbatches, &Slow::new()).expect("small");
        let id = BenchmarkId::new(name, format!("p={devices} m={microbatches}"));
        group.bench_function(id, |bencher| bencher.iter(|| order_ops(black_box(&open), &costs).map(|s| s.ops().len())));
    }
    group.finish();
}

/// Predictions per second of a model on hardware, from the tables' texts to time and memory (`predict --model --hardware` without
/// the process), and of its parts.
fn forecasts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("forecast");
    let layout = ParallelConfig { pp: 8, tp: 8, micro: 64, sequence: 8192, ..ParallelConfig::default() };
    let analytic = |chunks: u32| {
        let machine = Platform {
            hardware: models::hardware("h100-sxm").expect("known"),
            stack: models::stack(&layout.stack).expect("known"),
        };
        let model = models::transformer_named("llama-3-70b").expect("known");
        Analytic::new(model, machine, ParallelConfig { chunks, ..layout.clone() }).expect("fits")
    };
    group.throughput(Throughput::Elements(1));
    for (name, chunks) in [("1f1b", 1), ("zb-v", 2)] {
        group.bench_function(BenchmarkId::new(name, "p=8 m=64"), |bencher| {
            bencher.iter(|| analytic(black_box(chunks)).estimate(name).expect("exists").iteration_s)
        });
    }
    group.bench_function("tables and costs", |bencher| bencher.iter(|| analytic(black_box(1)).spec.parameters()));
    let graph = graph("1f1b", 8, 64);
    let costs = costs(&graph);
    group.bench_function("sweep of 1f1b alone", |bencher| bencher.iter(|| makespan(black_box(&graph), &costs)));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = sweep, topological_order, text_to_makespan, four_schedules, events, samples, searches, forecasts
}
criterion_main!(benches);
