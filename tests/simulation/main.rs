//! What schedules cost: simulation, bounds, searches and proofs against published figures; and the pictures of it.

mod analytic;
mod choice;
mod claims;
mod contests;
mod costs;
mod cuts;
mod event;
mod exactness;
mod experts;
mod extremes;
mod families;
mod formats;
mod fsdp;
mod hull;
mod imports;
mod journals;
mod judgement;
mod kinds;
mod layouts;
mod left_out;
mod machines;
mod measured;
mod memory;
mod mixtures;
mod model_files;
mod models;
mod monotone;
mod names;
mod offload;
mod optima;
mod ordering;
mod overlap;
mod papers;
mod pictures;
mod plan;
mod plan_neighbours;
mod plan_splits;
mod plots;
mod questions;
mod rationals;
mod recompute;
mod records;
mod replicas;
mod report;
mod shards;
mod shares;
mod slice_costs;
mod slices;
mod slow_slices;
mod stage_layouts;
mod steps;
mod successive;
mod tuning;
mod uneven;
mod validation;
mod vision;

#[path = "../support/mod.rs"]
mod support;

// The second methods of the fuzz targets.
#[path = "../fuzz/reference.rs"]
mod reference;
#[path = "../fuzz/xml.rs"]
mod xml;
