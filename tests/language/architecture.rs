//! The source keeps the rules that `src/lib.rs` states.

use crate::imports::{Imports, rust_files};
use crate::support::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The crates of `src/`, lowest first, and the ones that each may use. The rest of `src/` is the facade and the command line, which may
/// use all.
const CRATES: [(&str, &str); 18] = [
    ("nvshmem-sys", ""),
    ("gpu", "nvshmem-sys"),
    ("system", ""),
    ("schedule", ""),
    ("language", "schedule"),
    ("models", "schedule"),
    ("frameworks", "models schedule"),
    ("jobs", "models schedule"),
    ("cost", "models schedule"),
    ("sim", "cost models schedule"),
    ("diagnosis", "cost language models schedule sim"),
    ("import", "language schedule"),
    ("report", "cost schedule sim system"),
    ("answer", "cost diagnosis frameworks language models report schedule sim system"),
    ("verdict", "answer cost frameworks jobs models report schedule"),
    ("train", "gpu models schedule system"),
    ("exec", "cost gpu models nvshmem-sys schedule train"),
    ("measure", "answer cost exec models report schedule sim system train"),
];

/// Most lines of a crate.
const LINES: usize = 10_900;

/// The folders of all crates that the product consists of.
fn crates() -> Vec<std::path::PathBuf> {
    let inner = CRATES.iter().map(|(name, _)| root().join("src").join(name));
    inner.chain([root().join("src"), root().join("kernels/cpu/src")]).collect()
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
    for folder in crates() {
        let imports = Imports::read(&folder);
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
}

/// The compiler refuses circles of crates; this keeps their list, so that nothing comes to need more than it must.
#[test]
fn crates_use_those_of_the_table() {
    let mut folders: Vec<String> = fs::read_dir(root().join("src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("Cargo.toml").exists())
        .map(|path| path.file_name().unwrap().to_string_lossy().to_string())
        .collect();
    folders.sort();
    let listed: BTreeSet<&str> = CRATES.iter().map(|(name, _)| *name).collect();
    assert!(folders.iter().map(String::as_str).eq(listed.iter().copied()), "the table lists the crates of src/");
    for (at, (name, uses)) in CRATES.iter().enumerate() {
        let manifest = fs::read_to_string(root().join("src").join(name).join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
        let found: BTreeSet<&str> = dependencies
            .lines()
            .filter_map(|line| line.split(['.', ' ']).next())
            .map(|package| package.strip_prefix("pipesim-").unwrap_or(package))
            .filter(|package| listed.contains(package))
            .collect();
        assert!(found.iter().copied().eq(uses.split_whitespace()), "{name} uses {found:?}, the table has {uses}");
        let lower: BTreeSet<&str> = CRATES[..at].iter().map(|(lower, _)| *lower).collect();
        assert!(found.is_subset(&lower), "{name} uses a crate above it");
    }
}

#[test]
fn crates_are_small() {
    for folder in crates() {
        let lines = |path: std::path::PathBuf| fs::read_to_string(path).unwrap().lines().count();
        let count: usize = rust_files(&folder).into_iter().map(lines).sum();
        assert!(count <= LINES, "{} has {count} lines, expected at most {LINES}", folder.display());
    }
}

/// Who simulates schedules needs no command line, GPU or training, and no Starlark either: `tests/all` builds these for WebAssembly.
#[test]
fn simulation_needs_few_packages() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let packages: BTreeMap<&str, Vec<&str>> = lock
        .split("[[package]]")
        .filter_map(|text| {
            let (_, name) = text.split_once("name = \"")?;
            let needs = text.split_once("dependencies = [").map_or("", |(_, needs)| needs);
            let needs = needs.lines().filter_map(|line| line.trim().strip_prefix('"')?.split(['"', ' ']).next());
            Some((name.split('"').next()?, needs.collect()))
        })
        .collect();
    let (mut needed, mut left) = (BTreeSet::new(), vec!["pipesim-sim"]);
    while let Some(name) = left.pop() {
        if needed.insert(name) {
            left.extend(packages[name].iter().copied());
        }
    }
    assert!(needed.contains("pipesim-schedule") && needed.contains("serde"), "{needed:?}");
    for unwanted in ["clap", "cudarc", "starlark", "pipesim-train", "pipesim-report", "tiktoken-rs"] {
        assert!(!needed.contains(unwanted), "pipesim-sim needs {unwanted}");
    }
}

/// The product's own files; bindings follow rules of their own.
fn all_rust_files() -> Vec<std::path::PathBuf> {
    crates().iter().filter(|folder| !folder.ends_with("nvshmem-sys")).flat_map(|folder| rust_files(folder)).collect()
}

#[test]
fn every_file_says_what_it_is() {
    for file in all_rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{} begins with no //! line", file.display());
        assert!(text.lines().count() <= 500, "{} is longer than 500 lines", file.display());
    }
}

/// Unit tests would not run: the manifests spare the second build of the libraries that they need.
#[test]
fn tests_are_outside_of_the_source() {
    let own: Vec<_> = crates()
        .into_iter()
        .filter(|folder| !["nvshmem-sys", "gpu"].iter().any(|name| folder.ends_with(name)))
        .collect();
    let folders = own.iter().filter(|folder| !folder.ends_with("kernels/cpu/src"));
    for folder in folders.cloned().chain([root().join("tests/validation/src")]) {
        for file in rust_files(&folder) {
            let text = fs::read_to_string(&file).unwrap();
            let found = ["#[cfg(test)]", "#[test]"].into_iter().find(|attribute| text.contains(attribute));
            assert!(found.is_none(), "{}: {found:?} is never built; move the test to tests/", file.display());
        }
        let manifest = [folder.join("Cargo.toml"), folder.parent().unwrap().join("Cargo.toml")];
        let manifest = fs::read_to_string(manifest.iter().find(|path| path.exists()).unwrap()).unwrap();
        let (_, library) = manifest.split_once("[lib]\n").unwrap();
        let library = library.split("\n\n").next().unwrap();
        assert!(library.contains("test = false"), "the library has no unit tests that need a build");
    }
}

/// What a machine must offer to train stays small, and speaks of models: a new model should be data and, at most, one call.
#[test]
fn a_machine_has_at_most_thirty_calls() {
    let text = fs::read_to_string(root().join("src/train/compute/calls.rs")).unwrap();
    let (_, calls) = text.split_once("pub trait Compute").unwrap();
    let count = calls.matches("\n    fn ").count();
    assert!((10..=30).contains(&count), "the trait has {count} calls");
}

/// Where `unsafe` stands, and what for. Each block says why it is sound.
const UNSAFE: [(&str, &str); 14] = [
    ("kernels/cpu/src/prefetch.rs", "prefetch hints take pointers"),
    ("src/cli/allocator.rs", "the program's allocator, which passes calls to the system's"),
    ("src/exec/arena.rs", "shared memory; its signals decide who may access what"),
    ("src/exec/heap.rs", "puts into it"),
    ("src/exec/collective.rs", "pieces of collective calls in it"),
    ("src/exec/reductions.rs", "sums of all workers in it"),
    ("src/exec/link/local.rs", "messages in it"),
    ("src/exec/host.rs", "ops read and write messages where they lie"),
    ("src/train/checkpoint/weights.rs", "files of weights are mapped into memory"),
    ("src/exec/ranks/mpi.rs", "bytes that MPI sends later"),
    ("src/exec/ranks/gathers.rs", "numbers that MPI passes later"),
    ("src/gpu/api/", "the driver, its compiler and its products"),
    ("src/gpu/library.rs", "libraries are opened at run time; variables for them are set while there is one thread"),
    ("src/gpu/symmetric.rs", "functions of a library opened at run time"),
];

#[test]
fn unsafe_stands_only_where_it_must() {
    let doctor = "src/exec/doctor/"; // asks drivers and libraries that may be broken, without the layer above them
    for file in all_rust_files() {
        let path = file.strip_prefix(root()).unwrap().to_string_lossy().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        let blocks = code.matches("unsafe {").count();
        let listed = path.starts_with(doctor) || UNSAFE.iter().any(|(place, _)| path.starts_with(place));
        assert!(blocks == 0 || listed, "{path} has {blocks} unsafe blocks and is not in the list");
        let reasons = text.matches("// SAFETY:").count();
        let macros = path.starts_with("src/gpu/api/") || path.starts_with(doctor); // one reason for all calls of a macro
        assert!(blocks <= reasons || macros, "{path}: {blocks} unsafe blocks, {reasons} reasons");
    }
}

/// Files of the library whose texts have flags, and whose flags these are. Elsewhere a text names a setting in backticks; the command
/// line writes its flag.
const FLAGS: &[(&str, &str)] = &[
    ("src/gpu/compiler.rs", "NVRTC's"),
    ("src/gpu/library.rs", "Docker's and pip's"),
    ("src/gpu/trial.rs", "NVRTC's"),
    ("src/exec/doctor/child.rs", "this program's, which is started again"),
    ("src/exec/doctor/host.rs", "cargo's, Slurm's, mpirun's and Docker's"),
    ("src/exec/link/local.rs", "cargo's"),
    ("src/import/files.rs", "nsys's"),
    ("src/import/sqlite.rs", "nsys's"),
    ("src/import/timers.rs", "Megatron-LM's"),
    ("src/schedule/mesh.rs", "a mesh, as cost files and recorded steps describe it"),
    ("src/jobs/", "those of training programs"),
    ("src/answer/plan/flags.rs", "those of training programs, and whole commands"),
    ("src/exec/ranks/role.rs", "cargo's"),
    ("src/exec/ranks/started.rs", "srun's"),
    ("src/measure/experiment/model_source.rs", "hf's"),
];

#[test]
fn texts_of_the_library_name_settings_without_flags() {
    let mut found = BTreeSet::new();
    for file in all_rust_files() {
        let path = file.strip_prefix(root()).unwrap().to_string_lossy().to_string();
        if path.starts_with("src/cli/") {
            continue;
        }
        for line in fs::read_to_string(&file).unwrap().lines() {
            let code = line.trim_start().split("// ").next().unwrap();
            let code = code.split("pipesim ").next().unwrap(); // a whole command
            let is_flag = |rest: &str| rest.starts_with(|letter: char| letter.is_ascii_lowercase());
            if !code.starts_with("//") && code.split("--").skip(1).any(is_flag) {
                let listed = FLAGS.iter().find(|(place, _)| path.starts_with(place));
                found.insert(listed.unwrap_or_else(|| panic!("{path} has a flag: {line}")).0);
            }
        }
    }
    assert_eq!(found.len(), FLAGS.len(), "only files with flags are listed");
}

/// Files outside of `src` that use private modules, and what for. The others go through the public API and the command line.
const INTERNALS: &[(&str, &str)] = &[
    ("tests/benches/simulation.rs", "the event engine on a prepared graph"),
    ("tests/language/batches.rs", "the queues of sends and receives"),
    ("tests/language/check.rs", "the queues, and the executor's threads without a model"),
    ("tests/language/frameworks.rs", "the rules of frameworks against tables of what the real programs said"),
    ("tests/language/names.rs", "suggestions for names, and escapes in messages"),
    ("tests/program/emulated.rs", "what kernels store"),
    ("tests/program/explorer.rs", "all options of the verbs that are served"),
    ("tests/program/flags.rs", "the parser of the command line, option by option"),
    ("tests/program/random.rs", "the options of all verbs, to draw from"),
    ("tests/program/tips.rs", "all verbs and their options"),
    ("tests/program/values.rs", "the same, value by value"),
    ("tests/simulation/cuts.rs", "stages cut from others"),
    ("tests/simulation/event.rs", "the event engine, its transfers and samples"),
    ("tests/simulation/formats.rs", "numbers and texts in tables, and names of outputs"),
    ("tests/simulation/layouts.rs", "the search that balances layers, memory of single ops, written hardware files"),
    ("tests/simulation/memory.rs", "the most that is held, without working memory"),
    ("tests/simulation/offload.rs", "the event engine's transfers, and a sweep that records"),
    ("tests/simulation/ordering.rs", "searches on several threads"),
    ("tests/simulation/pictures.rs", "ops that are narrower than a pixel"),
    ("tests/simulation/tuning.rs", "texts that name adapters"),
    ("tests/simulation/steps.rs", "members of the groups that sum gradients"),
    ("tests/simulation/slices.rs", "the event engine, and a sweep that records"),
    ("tests/simulation/overlap.rs", "the event engine, and a sweep with longer ops"),
    ("tests/simulation/names.rs", "what is said of names of models"),
    ("tests/simulation/models.rs", "positions of GPT-2's tensors in a file, and names with an owner"),
];

/// Files of the core that use the operating system, and what for.
const SYSTEM: [(&str, &str); 2] = [
    ("src/language/compile.rs", "schedules are evaluated in a thread with a deep stack, where there are threads"),
    ("src/answer/resolve/host.rs", "the machine's files and cores, which callers may replace by their own"),
];

/// The core has no processes, sockets or clocks, and no threads and files but where schedules are read and evaluated.
#[test]
fn the_core_needs_no_operating_system() {
    let core = ["schedule", "language", "models", "cost", "sim", "answer", "report"];
    let system = ["std::thread", "std::fs", "std::process", "std::time", "std::net", "Instant::now", "SystemTime::now"];
    let mut found = BTreeSet::new();
    for path in core.iter().flat_map(|name| rust_files(&root().join("src").join(name))) {
        let file = path.strip_prefix(root()).unwrap().to_str().unwrap().to_string();
        let text = fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let uses = code.filter(|line| system.iter().any(|name| line.contains(name))).count() > 0;
        // folders of reports are written with the feature pictures, and build scripts are not part of the crate
        if uses && !file.starts_with("src/report/file/") && !file.ends_with("/build.rs") {
            found.insert(file);
        }
    }
    let mut listed = SYSTEM.map(|(file, _)| file);
    listed.sort_unstable();
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), listed);
}

#[test]
fn private_modules_are_used_only_where_they_are_tested() {
    let training = "tests/training/"; // tensors, kernels, plans and records
    let private = ["pipesim", "internals"].join("::");
    for folder in ["examples", "tests", "tests/fuzz", "tests/validation"] {
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
