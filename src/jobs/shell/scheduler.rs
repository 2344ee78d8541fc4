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
            let value = if let Some(value) = word.strip_prefix(&format!("--{long}=")) {
                Some(value.to_string())
            } else if word == format!("--{long}") || !short.is_empty() && word == format!("-{short}") {
                words.peek().map(ToString::to_string)
            } else if !short.is_empty() && !word.starts_with("--") {
                word.strip_prefix(&format!("-{short}")).map(|value| value.trim_start_matches('=').to_string())
            } else {
                None
            };
            if let Some(value) = value {
                all.insert(*long, value);
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
