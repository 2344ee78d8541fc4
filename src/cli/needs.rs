//! Which option goes with which: one table for all verbs, so that what an option cannot do here is refused and never ignored.

use super::devices::DeviceKind;
use super::numbers::Numbers;
use super::options::Format;
use super::selection::{Cap, Names};
use crate::cost::{Decimal, GivenCosts, Per};
use crate::report::{Drawn, Place, Shape};
use crate::sim::event::Sharing;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use std::collections::BTreeSet;

/// Options that have something to do only where this fits.
struct Rule {
    options: &'static [&'static str],
    fits: fn(&Asked) -> bool,
    /// What follows the option's name in the error.
    why: &'static str,
}

/// What a checkpoint brings itself.
const OF_THE_CHECKPOINT: &[&str] = &["model", "blocks", "heads", "channels", "vocabulary", "max_sequence", "seed"];

const TRAINING: &[&str] = &[
    "model",
    "checkpoint",
    "blocks",
    "heads",
    "channels",
    "vocabulary",
    "max_sequence",
    "data",
    "tokenizer",
    "batch",
    "seq",
    "lr",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "clip",
    "seed",
    "repeat_batch",
    "baseline",
    "calibrate",
];

/// What is said of a model on hardware.
const LAID_OUT: &[&str] = &[
    "model",
    "tp",
    "dp",
    "cp",
    "batch",
    "seq",
    "compute_precision",
    "recompute",
    "zero",
    "sequence_parallel",
    "attention",
    "stack",
];

/// What `profile` asks of a training besides.
const TRAINED: &[&str] = &[
    "stages",
    "micro",
    "schedule",
    "chunks",
    "set",
    "overlap",
    "max_ticks",
    "max_ops",
    "timeout",
    "device",
    "link",
    "slices",
    "bfloat16",
    "layers",
    "steps",
    "warmup",
    "calibrate_batch",
];

const RULES: &[Rule] = &[
    Rule {
        options: TRAINED,
        fits: |a| !a.typed("machine"),
        why: "is about a training, and --hardware measures the machine alone; leave one of the two out",
    },
    Rule {
        options: TRAINING,
        fits: |a| !a.typed("machine"),
        why: "is about a training, and --hardware measures the machine alone; leave one of the two out",
    },
    Rule {
        options: LAID_OUT,
        fits: |a| !a.has("hardware") || a.typed("hardware"),
        why: "is about a model on hardware; give that, too, as in --model llama-3-70b --hardware h100-sxm",
    },
    Rule {
        options: &["micro_batch_size"],
        fits: |a| a.typed("hardware") || a.typed("profile"),
        why: "is about measured costs, or a model on hardware; give --profile, or --model llama-3-70b --hardware h100-sxm",
    },
    Rule {
        options: &["hardware"],
        fits: |a| a.typed("model"),
        why: "says where a model is trained; give the model, too, as in --model llama-3-70b",
    },
    Rule {
        options: &["costs", "costs_per", "profile", "slow"],
        fits: |a| !a.typed("hardware"),
        why: "says what ops cost, and so do --model and --hardware; leave one of them out",
    },
    Rule {
        options: TRAINING,
        fits: |a| !a.on(DeviceKind::Timed),
        why: "is about training, and timed devices train nothing; leave it out, or take another --device",
    },
    Rule {
        options: &["slices", "bfloat16"],
        fits: |a| !a.on(DeviceKind::Timed),
        why: "is for GPUs; leave it out, or use --device cuda",
    },
    Rule {
        options: &["stages"],
        fits: |a| a.verb.get_name() == "predict" || !a.has_several("stages"),
        why: "takes one number here; predict compares several",
    },
    Rule {
        options: &["micro"],
        fits: |a| ["predict", "accuracy"].contains(&a.verb.get_name()) || !a.has_several("micro"),
        why: "takes one number here; predict compares several",
    },
    Rule {
        options: &["costs", "costs_per", "slow"],
        fits: |a| !a.has("device") || a.on(DeviceKind::Timed),
        why: "goes with --device timed, or with predict --costs; devices that train are as fast as they are",
    },
    Rule {
        options: &["unit_ms"],
        fits: |a| a.on(DeviceKind::Timed),
        why: "goes with --device timed; devices that train are as fast as they are",
    },
    Rule {
        options: &["costs"],
        fits: |a| !a.typed("profile"),
        why: "and --profile both say what ops cost; leave one of the two out",
    },
    Rule {
        options: &["costs_per"],
        fits: |a| !a.typed("profile"),
        why: "says what --costs are of, and those of --profile are of a model's parts; leave it out",
    },
    Rule {
        options: &["costs_per"],
        fits: |a| a.get("costs_per") != Some(Per::Layer) || a.typed("layers"),
        why: "layer needs the number of layers; give it, as in --layers 32",
    },
    Rule {
        options: &["slow"],
        fits: |a| !a.typed("profile"),
        why: "goes with --costs; the devices of --profile are as measured",
    },
    Rule {
        options: &["unit_ms"],
        fits: |a| !a.typed("profile"),
        why: "says how long a unit of --costs lasts, and --profile is in ms; leave one of the two out",
    },
    Rule {
        options: &["unit_ms"],
        fits: |a| a.get::<GivenCosts>("costs").is_none_or(|costs| costs.unit().is_none()),
        why: "says how long a unit of --costs lasts, and these have a unit of time; leave it out",
    },
    Rule {
        options: &["calibrate"],
        fits: |a| !a.typed("profile"),
        why: "says what costs are measured on, and --profile has them; leave one of the two out",
    },
    Rule {
        options: &["layers"],
        fits: |a| {
            let costs = ["profile", "costs", "costs_per", "hardware"].iter().any(|option| a.typed(option));
            costs || a.has("data") && !a.on(DeviceKind::Timed)
        },
        why: "splits a model; give its costs with --profile, --costs, or --model and --hardware",
    },
    Rule {
        options: &["balance"],
        fits: |a| (a.typed("profile") || a.typed("hardware")) && !a.has("device"),
        why: "searches the layers of each stage by what a model's parts cost: predict them with --profile, or --model and --hardware, and run what it finds with --layers",
    },
    Rule {
        options: &["balance"],
        fits: |a| !a.typed("layers"),
        why: "searches what --layers says; leave one of the two out",
    },
    Rule {
        options: &["memory_cap"],
        fits: |a| a.typed("hardware") || a.get("memory_cap").and_then(Cap::bytes).is_none(),
        why: "in bytes is about a model on hardware: predict --model llama-3-70b --hardware h100-sxm; elsewhere give activation units, as in 8",
    },
    Rule {
        options: OF_THE_CHECKPOINT,
        fits: |a| !a.typed("checkpoint"),
        why: "is for a model that starts at random, and --checkpoint brings its own; leave one of the two out",
    },
    Rule {
        options: &["tokenizer"],
        fits: |a| a.typed("data"),
        why: "says how a text becomes tokens; give the text with --data",
    },
    Rule {
        options: &["batch"],
        fits: |a| !a.has("calibrate_micro"),
        why: "would change the size of micro-batches, which keep theirs here; leave it out",
    },
    Rule {
        options: &["samples", "jitter_seed"],
        fits: |a| a.typed("jitter"),
        why: "goes with --jitter; give that, too",
    },
    Rule {
        options: &["sharing", "link_scope"],
        fits: |a| a.get("transfer").is_some_and(|time: Decimal| time.to_f64() > 0.0),
        why: "is about messages that occupy a link; give the time that they do with --transfer",
    },
    Rule {
        options: &["link_scope"],
        fits: |a| a.get("sharing") != Some(Sharing::Unlimited),
        why: "is about links that are shared, and --sharing unlimited shares none; leave one of the two out",
    },
    Rule {
        options: &["ascii"],
        fits: |a| !a.has("format") || matches!(a.get("format"), Some(Format::Table | Format::Md)),
        why: "is about what people read; leave it out, or print --format table or md",
    },
    Rule {
        options: &["palette", "window"],
        fits: |a| a.is_drawn_in_the_terminal() || a.is_drawn(|_| true),
        why: "is about what is drawn; write a picture, a page or a folder, as in -o timelines.svg",
    },
    Rule {
        options: &["collapse"],
        fits: |a| a.is_drawn_in_the_terminal() || a.is_drawn(|drawn| drawn == Drawn::Still),
        why: "is about the terminal and pictures, pages zoom; write a picture, as in -o timelines.svg",
    },
    Rule {
        options: &["collapse"],
        fits: |a| !a.typed("window"),
        why: "draws the steady state once, and --window a part of the time; leave one of the two out",
    },
    Rule {
        options: &["title", "no_memory", "no_waits"],
        fits: |a| a.is_drawn(|_| true),
        why: "is about pictures and pages; write one, as in -o timelines.svg",
    },
    Rule {
        options: &["width", "font_size", "no_notes"],
        fits: |a| a.is_drawn(|drawn| drawn == Drawn::Still),
        why: "is about pictures; write one, as in -o timelines.svg",
    },
    Rule {
        options: &["verbose"],
        fits: |a| !a.typed("quiet"),
        why: "and --quiet contradict each other; leave one of the two out",
    },
    Rule {
        options: &["json"],
        fits: |a| !a.typed("name"),
        why: "prints the list of schedules, and a name its schedule's text; leave one of the two out",
    },
];

/// What was asked of a verb.
struct Asked<'a> {
    verb: &'a Command,
    matches: &'a ArgMatches,
}

impl Asked<'_> {
    /// Whether the verb has the option.
    fn has(&self, option: &str) -> bool {
        self.verb.get_arguments().any(|argument| argument.get_id() == option)
    }

    /// Whether the option was given, be it with its default value.
    fn typed(&self, option: &str) -> bool {
        self.has(option) && self.matches.value_source(option) == Some(ValueSource::CommandLine)
    }

    fn get<T: Clone + Send + Sync + 'static>(&self, option: &str) -> Option<T> {
        self.matches.try_get_one::<T>(option).ok().flatten().cloned()
    }

    /// Whether the option has more than one number.
    fn has_several(&self, option: &str) -> bool {
        self.get(option).is_some_and(|numbers: Numbers| numbers.are_several())
    }

    /// Whether timelines are printed, with colours.
    fn is_drawn_in_the_terminal(&self) -> bool {
        self.has("color") && self.get("format") == Some(Format::Table)
    }

    /// Whether some place is written where timelines are drawn so. Where none is named, what takes one anyway writes a folder.
    fn is_drawn(&self, so: fn(Drawn) -> bool) -> bool {
        let mut places = self.matches.try_get_many::<Place>("output").ok().flatten().into_iter().flatten().peekable();
        if places.peek().is_none() {
            return ["run", "accuracy"].contains(&self.verb.get_name());
        }
        places.any(|place| match place.shape {
            Shape::Stdout => false,
            Shape::Folder => true,
            Shape::File(drawn, _) => drawn != Drawn::Not && so(drawn),
        })
    }

    fn on(&self, device: DeviceKind) -> bool {
        self.get("device") == Some(device)
    }

    /// The first option that has nothing to do here, and why.
    fn refusal(&self) -> Option<String> {
        let broken = |rule: &Rule| {
            let given = rule.options.iter().find(|option| self.typed(option));
            given.filter(|_| !(rule.fits)(self)).map(|option| format!("--{} {}", self.long(option), rule.why))
        };
        RULES.iter().find_map(broken).or_else(|| self.set_twice())
    }

    fn long(&self, option: &str) -> String {
        let argument = self.verb.get_arguments().find(|argument| argument.get_id() == option);
        argument.and_then(|argument| argument.get_long()).unwrap_or(option).to_string()
    }

    fn set_twice(&self) -> Option<String> {
        let mut keys = BTreeSet::new();
        let mut set = self.matches.try_get_many::<(String, String)>("set").ok().flatten()?;
        if self.typed("chunks") && set.clone().any(|(key, _)| key == "v") {
            return Some(
                "--chunks and --set v both say how many stages a device has; leave one of the two out".to_string(),
            );
        }
        let all = set.clone();
        let (key, _) = set.find(|(key, _)| !keys.insert(key))?;
        let names = self.matches.try_get_many::<Names>("schedule").ok().flatten();
        let name = names.and_then(|mut names| Some(names.next()?.all().first()?.clone()));
        let name = name.unwrap_or_else(|| "interleaved-1f1b".to_string());
        let variant = |(_, value): &(String, String)| format!("-s '{name}:{key}={value}'");
        let variants: Vec<String> = all.filter(|(other, _)| other == key).map(variant).collect();
        Some(format!(
            "--set gives {key} twice, and each is for all schedules; give it once, or compare {}",
            variants.join(" ")
        ))
    }
}

/// Refuses options that have nothing to do with the others that are given.
pub fn check(program: &Command, matches: &ArgMatches) -> Result<(), String> {
    let (mut verb, mut matches) = (program, matches);
    while let Some((name, inner)) = matches.subcommand() {
        (verb, matches) = (verb.find_subcommand(name).unwrap_or(verb), inner);
    }
    Asked { verb, matches }.refusal().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_about_options_that_some_verb_has() {
        let program = crate::cli::command();
        let mut verbs: Vec<&Command> = program.get_subcommands().collect();
        verbs.extend(program.get_subcommands().flat_map(Command::get_subcommands));
        for option in RULES.iter().flat_map(|rule| rule.options) {
            let has = |verb: &&Command| verb.get_arguments().any(|argument| argument.get_id() == option);
            assert!(verbs.iter().any(has), "no verb has --{option}");
        }
    }
}
