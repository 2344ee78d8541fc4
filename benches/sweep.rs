//! How fast schedules are simulated, on one core: `cargo bench --bench sweep`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pipesim::cost::{CostTable, GivenCosts, Slow, StepCosts};
use pipesim::dsl::{self, Budget, Request};
use pipesim::graph::TaskGraph;
use pipesim::metrics::Activity;
use pipesim::sim;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

fn graph(name: &str, devices: u32, microbatches: u32) -> TaskGraph {
    let request = Request { devices, microbatches, chunks: None, options: BTreeMap::new(), budget: Budget::default() };
    let compiled = dsl::compile(&dsl::resolve(name).expect("embedded"), &request).expect("valid");
    TaskGraph::new(compiled.order.fixed().expect("fixed")).expect("no cycle")
}

fn costs(graph: &TaskGraph) -> CostTable {
    let costs: GivenCosts = "F=1,I=1.1,W=0.8,comm=0.1".parse().expect("costs");
    let schedule = graph.schedule();
    costs.table(&schedule.placement, schedule.microbatches, &Slow::new()).expect("small")
}

fn makespan(graph: &TaskGraph, costs: &CostTable) -> u64 {
    sim::sweep(graph, costs).iter().map(|device: &Activity| device.last_end).max().unwrap_or(0)
}

/// Ops a second of the sweep alone, on a graph that is there.
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

/// Ops a second from the schedule's text to the makespan: parse, expand, check, build, sweep.
fn text_to_makespan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("text to makespan");
    let ops = graph("zb-v", 64, 1024).len() as u64;
    group.throughput(Throughput::Elements(ops));
    group.bench_function("zb-v/p=64 m=1024", |bencher| {
        bencher.iter(|| {
            let graph = graph(black_box("zb-v"), 64, 1024);
            makespan(&graph, &costs(&graph))
        });
    });
}

/// What `pipesim predict --stages 4 --micro 8` computes before it draws.
fn four_schedules(criterion: &mut Criterion) {
    criterion.bench_function("predict naive, gpipe, 1f1b, zb-v/p=4 m=8", |bencher| {
        bencher.iter(|| {
            ["naive", "gpipe", "1f1b", "zb-v"].map(|name| {
                let graph = graph(black_box(name), 4, 8);
                sim::predict(&graph, &costs(&graph), &StepCosts::default()).0.metrics.makespan
            })
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = sweep, text_to_makespan, four_schedules
}
criterion_main!(benches);
