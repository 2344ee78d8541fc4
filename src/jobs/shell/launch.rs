//! The command that starts the training program, among all that a script runs.

use super::builtin::{LAUNCHERS, is_one_of, program};
use super::command::{Command, Word};
use super::{Script, read};
use crate::error::{JobError, Missing};
use crate::launch::Launch;
use crate::setting::{Setting, Settings};
use crate::source::Sources;
use std::collections::BTreeSet;

/// Programs that start one process per GPU.
const DISTRIBUTED: &str = "torchrun deepspeed accelerate srun mpirun mpiexec jsrun megatron swift";
/// Parts of names of programs that train nothing.
const OTHERS: &str = "convert preprocess prepare download merge tokeniz hf_ _hf eval generat export infer server test_ \
    create_data checkpoint setup build_ benchmark_gemm collect_env";
/// Parts of names of programs that train.
const TRAINERS: &str = "pretrain train finetune sft rlhf megatron run_";

/// Where a command's program is: its name, the first word of its arguments, and its rank among several.
struct Start {
    name: String,
    at: usize,
    arguments: usize,
    rank: u8,
}

/// Returns the command that starts the training program.
///
/// # Errors
/// There is none, or it is in a file that is not there.
pub fn launch(sources: &Sources) -> Result<Launch, JobError> {
    let script = read(sources)?;
    let starts: Vec<(&Command, Start)> =
        script.commands.iter().filter_map(|command| start(command).map(|start| (command, start))).collect();
    let rank = starts.iter().map(|(_, start)| start.rank).min().unwrap_or_default();
    let same_rank = || starts.iter().filter(|(_, start)| start.rank == rank);
    let words = |command: &Command| command.words.iter().map(|word| word.text.clone()).collect::<Vec<_>>();
    let different: BTreeSet<Vec<String>> = same_rank().map(|(command, _)| words(command)).collect();
    let best = same_rank().next();
    match best {
        Some((command, start)) => {
            let launch = describe(command, start, sources);
            Ok(Launch { absent: script.absent.clone(), others: different.len() - 1, ..launch })
        }
        None => Err(none(script, sources)),
    }
}

fn none(script: Script, sources: &Sources) -> JobError {
    if !script.absent.is_empty() {
        let mut all: Vec<Missing> = script.absent.into_iter().map(|path| Missing::File { path }).collect();
        all.sort();
        all.dedup();
        return JobError::Missing(all);
    }
    script.problem.unwrap_or_else(|| JobError::File {
        place: sources.files.first().map_or(String::new(), |file| file.name.clone()),
        why: format!(
            "expected a command that starts a training program (torchrun, python, srun, megatron ...), found {} other commands; \
             name the script that starts the training",
            script.commands.len()
        ),
    })
}

/// Finds the program of a command.
fn start(command: &Command) -> Option<Start> {
    let words: Vec<&str> = command.words.iter().map(|word| word.text.as_str()).collect();
    let first = program(words.first()?);
    let is_override = first.split_once('=').is_some_and(|(name, _)| name.contains('.'));
    if first.starts_with("--") || is_override {
        return Some(Start { name: String::new(), at: 0, arguments: 0, rank: 2 });
    }
    let python = |word: &str| program(word).starts_with("python");
    let known =
        is_one_of(LAUNCHERS, &first) || is_one_of(DISTRIBUTED, &first) || python(&first) || first.starts_with("primus");
    if !known && !first.ends_with(".py") {
        return None;
    }
    let distributed = words
        .iter()
        .chain(&command.within.iter().map(|word| word.text.as_str()).collect::<Vec<_>>())
        .any(|word| is_one_of(DISTRIBUTED, &program(word)) || word.starts_with("torch.distributed"));
    for (at, word) in words.iter().enumerate() {
        let name = program(word);
        let next = words.get(at + 1).copied().unwrap_or_default();
        let before = |word: &&str| python(word) || matches!(&*program(word), "torchrun" | "deepspeed" | "accelerate");
        let runs_module = words[..at].iter().any(before);
        let (name, arguments) = match &*name {
            "-m" if runs_module
                && !next.starts_with("torch.distributed")
                && at > 0
                && next != "accelerate.commands.launch" =>
            {
                (next.to_string(), at + 2)
            }
            "megatron" | "swift" if at + 1 < words.len() && !next.starts_with('-') => {
                (format!("{name} {next}"), at + 2)
            }
            "primus-cli" | "primus" => ("primus-cli".to_string(), at + 1),
            _ if name.ends_with(".py") && !word.starts_with('-') => ((*word).to_string(), at + 1),
            _ => continue,
        };
        if words.len() == arguments && !distributed {
            return None;
        }
        let last = program(&name).to_lowercase();
        let other = OTHERS.split(' ').any(|part| last.contains(part));
        let trains = TRAINERS.split(' ').any(|part| last.contains(part));
        let rank = match (other, trains, distributed) {
            (false, true, _) => 0,
            (false, _, true) => 1,
            (true, true, true) => 1,
            (false, false, false) => 3,
            _ => 4,
        };
        return Some(Start { name, at, arguments, rank });
    }
    // the program itself is set elsewhere: `torchrun ... $SCRIPT --num-layers 32`
    let at = words
        .iter()
        .enumerate()
        .skip(1)
        .find(|(at, word)| word.is_empty() && !command.words[*at].unresolved.is_empty())?
        .0;
    distributed.then(|| Start { name: String::new(), at, arguments: at + 1, rank: 2 })
}

fn describe(command: &Command, start: &Start, sources: &Sources) -> Launch {
    let mut launch =
        Launch { program: start.name.clone(), environment: command.environment.clone(), ..Launch::default() };
    settings(&command.words[start.arguments..], &mut launch);
    let launchers: Vec<&Word> = command.within.iter().chain(&command.words[..start.at]).collect();
    let mut world = World { words: &launchers, command, missing: Vec::new() };
    launch.world = sources.gpus.or(world.size(&start.name));
    launch.missing = world.missing;
    launch
}

/// Whether a word is an option; a negative number is a value.
fn is_option(word: &Word) -> bool {
    word.text.len() > 1
        && word.text.starts_with('-')
        && !word.text[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

fn settings(words: &[Word], launch: &mut Launch) {
    let Settings(list) = &mut launch.settings;
    for word in words {
        if is_option(word) {
            let name = word.text.trim_start_matches('-');
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, vec![value.to_string()]),
                None => (name, Vec::new()),
            };
            list.push(Setting {
                name: name.to_string(),
                values: value,
                place: word.place.clone(),
                unresolved: word.unresolved.clone(),
            });
            continue;
        }
        let override_of = word.text.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._+~".contains(c))
        });
        let substitution = word.text.is_empty() && word.unresolved.iter().any(|name| name.starts_with("$("));
        match list.last_mut() {
            // options that may be set elsewhere follow an option that has its value
            Some(setting)
                if word.text.is_empty()
                    && !word.unresolved.is_empty()
                    && !setting.values.is_empty()
                    && !substitution => {}
            Some(setting) if setting.values.is_empty() || !(substitution || override_of) => {
                setting.values.push(word.text.clone());
                for name in &word.unresolved {
                    if !setting.unresolved.contains(name) {
                        setting.unresolved.push(name.clone());
                    }
                }
            }
            _ if word.text.is_empty() => launch.words.extend(word.unresolved.iter().cloned()),
            _ => launch.words.push(word.text.clone()),
        }
    }
}

/// Reads the number of processes from the launchers.
struct World<'a> {
    words: &'a [&'a Word],
    command: &'a Command,
    missing: Vec<Missing>,
}

impl World<'_> {
    fn has(&self, name: &str) -> bool {
        self.words.iter().any(|word| program(&word.text) == name)
    }

    /// Returns the value of an option that has several names.
    fn option(&self, names: &[&str]) -> Option<Word> {
        let same = |text: &str, name: &str| text.replace('_', "-") == name.replace('_', "-");
        for (at, word) in self.words.iter().enumerate() {
            for name in names {
                if same(&word.text, name) {
                    return self.words.get(at + 1).map(|word| (*word).clone());
                }
                let value = word.text.split_once('=').filter(|(start, _)| same(start, name)).map(|(_, value)| value);
                let short = word.text.strip_prefix(name).filter(|rest| name.len() == 2 && rest.parse::<u32>().is_ok());
                if let Some(value) = value.or(short) {
                    return Some(Word { text: value.to_string(), ..(*word).clone() });
                }
            }
        }
        None
    }

    /// Returns the number that an option or a variable says; notes what it needs.
    fn number(&mut self, names: &[&str], variables: &[&str]) -> Option<Result<u32, ()>> {
        let Some(word) = self.option(names) else {
            let value = variables.iter().find_map(|name| self.command.environment.get(*name))?;
            return Some(value.parse().map_err(drop));
        };
        for name in &word.unresolved {
            let used_by = names[0].to_string();
            self.missing.push(match name.parse() {
                Ok(number) => Missing::Parameter { number, used_by },
                Err(_) => Missing::Variable { name: name.clone(), used_by },
            });
        }
        if !word.unresolved.is_empty() {
            return Some(Err(()));
        }
        Some(word.text.parse().map_err(drop))
    }

    fn size(&mut self, program: &str) -> Option<u32> {
        let or = |number: Option<Result<u32, ()>>, default: Option<u32>| match number {
            Some(found) => found.ok(),
            None => default,
        };
        if program.starts_with("megatron ") || program.starts_with("swift ") {
            let per_node = or(self.number(&["--nproc_per_node"], &["NPROC_PER_NODE"]), None);
            let nodes = or(self.number(&["--nnodes"], &["NNODES"]), Some(1));
            return per_node?.checked_mul(nodes?);
        }
        let torchrun = self.has("torchrun") || self.words.iter().any(|word| word.text.starts_with("torch.distributed"));
        let per_node = self.number(&["--nproc_per_node", "--num_gpus"], &[]);
        if torchrun || per_node.is_some() {
            let nodes = self.number(&["--nnodes", "--num_nodes"], &[]);
            return or(per_node, torchrun.then_some(1))?.checked_mul(or(nodes, Some(1))?);
        }
        if self.has("deepspeed") {
            return None;
        }
        if self.has("accelerate") {
            return or(self.number(&["--num_processes"], &[]), None);
        }
        if self.has("mpirun") || self.has("mpiexec") {
            return or(self.number(&["-np", "-n", "--np"], &[]), None);
        }
        if !self.has("srun") {
            return None;
        }
        if let Some(tasks) = self.number(&["--ntasks", "-n"], &[]) {
            return tasks.ok();
        }
        let per_node = self.number(&["--ntasks-per-node"], &["SLURM_NTASKS_PER_NODE"]);
        let nodes = self.number(&["--nodes", "-N"], &["SLURM_NNODES", "SLURM_JOB_NUM_NODES"]);
        match (nodes, per_node) {
            (Some(nodes), Some(tasks)) => nodes.ok()?.checked_mul(tasks.ok()?),
            _ => or(self.number(&[], &["SLURM_NTASKS", "SLURM_NPROCS"]), None),
        }
    }
}
