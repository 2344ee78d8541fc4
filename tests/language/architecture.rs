//! The source keeps the rules that `src/lib.rs` states.

use crate::imports::{Imports, rust_files};
use crate::support::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The layers in the documentation of `src/lib.rs`, lowest first: each module's.
fn layers() -> BTreeMap<String, usize> {
    let text = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("//! ")?.split_once(": "));
    lines
        .filter_map(|(head, modules)| Some((head.split(' ').next()?.parse().ok()?, modules)))
        .flat_map(|(layer, modules): (usize, &str)| modules.split(' ').map(move |module| (module.to_string(), layer)))
        .collect()
}

/// The module of a file: `src/dsl/word.rs` is of `dsl`.
fn module(file: &str) -> &str {
    file.trim_start_matches("src/").split('/').next().unwrap().trim_end_matches(".rs")
}

/// Sets of files or modules that all use each other, directly or not.
fn circles<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let mut graph = petgraph::Graph::<&str, ()>::new();
    let nodes: BTreeMap<&str, _> = edges.keys().map(|name| (*name, graph.add_node(*name))).collect();
    for (from, uses) in edges {
        uses.iter().filter_map(|to| nodes.get(to)).for_each(|to| {
            graph.add_edge(nodes[from], *to, ());
        });
    }
    let is_circle = |set: &Vec<_>| set.len() > 1 || graph.contains_edge(set[0], set[0]);
    let sets = petgraph::algo::tarjan_scc(&graph).into_iter().filter(is_circle);
    sets.map(|set| set.into_iter().map(|node| graph[node]).collect()).collect()
}

#[test]
fn files_form_no_circles() {
    let imports = Imports::read();
    let edges = imports.edges();
    let found = circles(&edges);
    for circle in &found {
        for file in circle {
            let inside: Vec<_> = edges[file].iter().filter(|to| circle.contains(to)).collect();
            println!("{file} uses {inside:?}");
        }
        println!();
    }
    assert!(found.is_empty(), "circles: {found:#?}");
}

#[test]
fn modules_use_their_own_storey_and_those_below() {
    let (layers, imports) = (layers(), Imports::read());
    let mut modules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, uses) in imports.edges().into_iter().filter(|(file, _)| *file != "src/lib.rs") {
        let from = module(file);
        let layer = layers.get(from).unwrap_or_else(|| panic!("{from} is in no layer of src/lib.rs"));
        for (to, used) in uses.into_iter().map(|used| (module(used), used)).filter(|(to, _)| *to != from) {
            assert!(used == "src/lib.rs" || layers[to] <= *layer, "{file} uses {used}, which is a layer above");
            modules.entry(from).or_default().insert(to);
        }
        modules.entry(from).or_default();
    }
    let found = circles(&modules);
    assert!(found.is_empty(), "modules in circles: {found:?}");
    assert!(modules.keys().copied().eq(layers.keys().map(String::as_str)), "src/lib.rs lists the modules of src/");
}

/// The product's own files: the crate, and the members of the workspace that it is built from.
fn all_rust_files() -> Vec<std::path::PathBuf> {
    ["src", "cpu-kernels/src", "cuda/src"].iter().flat_map(|folder| rust_files(&root().join(folder))).collect()
}

#[test]
fn every_file_says_what_it_is() {
    for file in all_rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{} begins with no //! line", file.display());
        assert!(text.lines().count() <= 500, "{} is longer than 500 lines", file.display());
    }
}

/// Unit tests would not run: `Cargo.toml` spares the second build of the library that they need.
#[test]
fn tests_are_outside_of_the_source() {
    for folder in ["src", "validation/src"] {
        for file in rust_files(&root().join(folder)) {
            let text = fs::read_to_string(&file).unwrap();
            let found = ["#[cfg(test)]", "#[test]"].into_iter().find(|attribute| text.contains(attribute));
            assert!(found.is_none(), "{}: {found:?} is never built; move the test to tests/", file.display());
        }
    }
    for manifest in ["Cargo.toml", "validation/Cargo.toml"] {
        let manifest = fs::read_to_string(root().join(manifest)).unwrap();
        assert!(manifest.contains("[lib]\ntest = false\n"), "the library has no unit tests that need a build");
    }
}

/// What a machine must offer to train stays small, and speaks of models: a new model should be data and, at most, one call.
#[test]
fn a_machine_has_at_most_thirty_calls() {
    let text = fs::read_to_string(root().join("src/compute/calls.rs")).unwrap();
    let (_, calls) = text.split_once("pub trait Compute").unwrap();
    let count = calls.matches("\n    fn ").count();
    assert!((10..=30).contains(&count), "the trait has {count} calls");
}

/// Where `unsafe` stands, and what for. Each block says why it is sound.
const UNSAFE: [(&str, &str); 14] = [
    ("cpu-kernels/src/prefetch.rs", "prefetch hints take pointers"),
    ("src/cli/allocator.rs", "the program's allocator, which passes calls to the system's"),
    ("src/exec/arena.rs", "shared memory; its signals decide who may access what"),
    ("src/exec/heap.rs", "puts into it"),
    ("src/exec/collective.rs", "pieces of collective calls in it"),
    ("src/exec/reductions.rs", "sums of all workers in it"),
    ("src/exec/link/local.rs", "messages in it"),
    ("src/exec/host.rs", "ops read and write messages where they lie"),
    ("src/checkpoint/weights.rs", "files of weights are mapped into memory"),
    ("src/ranks/mpi.rs", "bytes that MPI sends later"),
    ("src/ranks/gathers.rs", "numbers that MPI passes later"),
    ("cuda/src/api/", "the driver, its compiler and its products"),
    ("cuda/src/library.rs", "libraries are opened at run time; variables for them are set while there is one thread"),
    ("cuda/src/symmetric.rs", "functions of a library opened at run time"),
];

#[test]
fn unsafe_stands_only_where_it_must() {
    let doctor = "src/doctor/"; // asks drivers and libraries that may be broken, without the layer above them
    for file in all_rust_files() {
        let path = file.strip_prefix(root()).unwrap().to_string_lossy().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        let blocks = code.matches("unsafe {").count();
        let listed = path.starts_with(doctor) || UNSAFE.iter().any(|(place, _)| path.starts_with(place));
        assert!(blocks == 0 || listed, "{path} has {blocks} unsafe blocks and is not in the list");
        let reasons = text.matches("// SAFETY:").count();
        let macros = path.starts_with("cuda/src/api/") || path.starts_with(doctor); // one reason for all calls of a macro
        assert!(blocks <= reasons || macros, "{path}: {blocks} unsafe blocks, {reasons} reasons");
    }
}

/// Files outside of `src` that use private modules, and what for. The others go through the public API and the command line.
const INTERNALS: [(&str, &str); 19] = [
    ("benches/simulation.rs", "the event engine on a prepared graph"),
    ("tests/language/batches.rs", "the queues of sends and receives"),
    ("tests/language/check.rs", "the queues, and the executor's threads without a model"),
    ("tests/language/names.rs", "suggestions for names, and escapes in messages"),
    ("tests/program/emulated.rs", "what kernels store"),
    ("tests/program/explorer.rs", "all options of the verbs that are served"),
    ("tests/program/flags.rs", "the parser of the command line, option by option"),
    ("tests/program/tips.rs", "all verbs and their options"),
    ("tests/program/values.rs", "the same, value by value"),
    ("tests/simulation/cuts.rs", "stages cut from others"),
    ("tests/simulation/event.rs", "the event engine, its transfers and samples"),
    ("tests/simulation/formats.rs", "numbers and texts in tables, and names of outputs"),
    ("tests/simulation/layouts.rs", "the search that balances layers, memory of single ops, written hardware files"),
    ("tests/simulation/memory.rs", "the most that is held, without working memory"),
    ("tests/simulation/offload.rs", "the event engine's transfers, and a sweep that records"),
    ("tests/simulation/pictures.rs", "ops that are narrower than a pixel"),
    ("tests/simulation/slices.rs", "the event engine, and a sweep that records"),
    ("tests/simulation/overlap.rs", "the event engine, and a sweep with longer ops"),
    ("tests/simulation/models.rs", "positions of GPT-2's tensors in a file, and names with an owner"),
];

/// Files of the core that use the operating system, and what for.
const SYSTEM: [(&str, &str); 2] = [
    ("src/dsl/compile.rs", "schedules are evaluated in a thread with a deep stack, where there are threads"),
    ("src/resolve/host.rs", "the machine's files and cores, which callers may replace by their own"),
];

/// What is built without features has no processes, sockets or clocks, and no threads and files but where schedules are read and evaluated.
#[test]
fn the_core_needs_no_operating_system() {
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let lines: Vec<&str> = library.lines().collect();
    let ungated = lines.windows(2).filter(|pair| !pair[0].starts_with("#[cfg"));
    let core: BTreeSet<&str> = ungated.filter_map(|pair| pair[1].strip_prefix("mod ")?.strip_suffix(';')).collect();
    assert!(core.contains("sim") && core.contains("dsl") && !core.contains("exec"), "{core:?}");
    let system = ["std::thread", "std::fs", "std::process", "std::time", "std::net", "Instant::now", "SystemTime::now"];
    let mut found = BTreeSet::new();
    for path in rust_files(&root().join("src")) {
        let file = path.strip_prefix(root()).unwrap().to_str().unwrap().to_string();
        let text = fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let uses = code.filter(|line| system.iter().any(|name| line.contains(name))).count() > 0;
        // folders of reports are written with the feature pictures
        if uses && core.contains(module(&file)) && !file.starts_with("src/report/file/") {
            found.insert(file);
        }
    }
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), SYSTEM.map(|(file, _)| file));
}

#[test]
fn private_modules_are_used_only_where_they_are_tested() {
    let training = "tests/training/"; // tensors, kernels, plans and records
    let private = ["pipesim", "internals"].join("::");
    for folder in ["benches", "examples", "fuzz", "tests", "validation"] {
        for file in rust_files(&root().join(folder)) {
            let path = file.strip_prefix(root()).unwrap().to_string_lossy().to_string();
            let is_used = fs::read_to_string(&file).unwrap().contains(&private);
            let is_listed = INTERNALS.iter().any(|(listed, _)| *listed == path);
            assert!(is_used == is_listed || path.starts_with(training), "{path}: used {is_used}, listed {is_listed}");
        }
    }
}

#[test]
fn schedules_are_embedded_all() {
    let mut files: Vec<String> = fs::read_dir(root().join("schedules"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().to_string())
        .collect();
    files.sort();
    let mut names: Vec<String> = pipesim::schedules::names().into_iter().map(str::to_string).collect();
    names.sort();
    assert_eq!(files, names);
}
