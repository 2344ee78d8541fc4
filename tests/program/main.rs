//! pipesim as a user starts it: verbs, files and exit codes; several processes; GPUs; libraries that it opens.

mod attention;
mod benches;
mod calibrate;
mod cli;
mod compared;
mod docs;
mod emulated;
mod explain;
mod explorer;
mod file_kinds;
mod flags;
mod gpu_hosts;
mod graphs;
mod habits;
mod hardware;
mod hostile;
mod jobs;
mod kinds;
mod limits;
mod measured;
mod mixtures;
mod nvshmem;
mod outputs;
mod overlap;
mod plan;
mod products;
mod questions;
mod random;
mod ranks;
mod reports;
mod signals;
mod sweeps;
mod teaching;
mod throughput;
mod tips;
mod train;
mod train_ranks;
mod validation;
mod values;
mod variants;
mod verdicts;
mod widths;
mod workers;

#[path = "../support/mod.rs"]
mod support;
