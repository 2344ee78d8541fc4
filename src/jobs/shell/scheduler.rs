//! What schedulers derive from the header of a script: `#SBATCH`, `#PBS`, `#BSUB`.

use std::collections::BTreeMap;

/// Long and short names of the options that are read.
const OPTIONS: &[(&str, &str)] = &[
    ("nodes", "N"),
    ("ntasks", "n"),
    ("ntasks-per-node", ""),
    ("gpus-per-node", ""),
    ("gres", ""),
    ("gpus", "G"),
    ("cpus-per-task", "c"),
    ("job-name", "J"),
    ("gpus-per-task", ""),
    ("partition", "p"),
    ("account", "A"),
];

/// Returns the options of a scheduler's line, by their long name.
pub(super) fn options<'w>(words: impl Iterator<Item = &'w str>) -> BTreeMap<&'static str, String> {
    let mut all = BTreeMap::new();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        for (long, short) in OPTIONS {
            let after_long = word.strip_prefix("--").and_then(|word| word.strip_prefix(long));
            let after_short = word.strip_prefix('-').filter(|word| !short.is_empty() && !word.starts_with('-'));
            let rest = after_long.filter(|rest| rest.is_empty() || rest.starts_with('='));
            let value = match rest.or(after_short.and_then(|word| word.strip_prefix(short))) {
                Some("") => words.peek().copied(),
                rest => rest.map(|rest| rest.trim_start_matches('=')),
            };
            if let Some(value) = value {
                all.insert(*long, value.to_string());
            }
        }
    }
    all
}

/// Returns the environment variables that a scheduler sets.
pub(super) fn header(text: &str) -> Vec<(&'static str, String)> {
    let rows = text.lines().map(str::trim);
    let mut words: Vec<&str> = Vec::new();
    for row in rows.take_while(|row| row.is_empty() || row.starts_with(['#', ':'])) {
        if let Some(rest) = row.strip_prefix("#SBATCH") {
            words.extend(rest.split_whitespace().take_while(|word| !word.starts_with('#')));
        }
    }
    let found = options(words.into_iter());
    let number = |name: &str| {
        let text = found.get(name)?;
        text.split(['-', ',']).next()?.rsplit(':').next()?.parse::<u32>().ok()
    };
    let nodes = number("nodes").or((!found.is_empty()).then_some(1));
    let gpus = number("gpus-per-node").or_else(|| number("gres").filter(|_| found["gres"].starts_with("gpu")));
    let per_node = number("ntasks-per-node");
    let tasks = number("ntasks").or(nodes.zip(per_node).and_then(|(nodes, tasks)| nodes.checked_mul(tasks)));
    let mut all = Vec::new();
    let mut add = |names: &[&'static str], value: Option<String>| {
        if let Some(value) = value {
            all.extend(names.iter().map(|name| (*name, value.clone())));
        }
    };
    let shown = |value: Option<u32>| value.map(|value| value.to_string());
    add(&["SLURM_NNODES", "SLURM_JOB_NUM_NODES"], shown(nodes));
    add(&["SLURM_NTASKS", "SLURM_NPROCS"], shown(tasks));
    add(&["SLURM_NTASKS_PER_NODE"], shown(per_node));
    add(&["SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"], shown(gpus));
    add(&["SLURM_CPUS_PER_TASK"], shown(number("cpus-per-task")));
    add(&["SLURM_JOB_NAME"], found.get("job-name").cloned());
    all
}
