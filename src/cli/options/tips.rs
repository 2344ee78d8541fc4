//! Tips below usage errors: what was probably meant, by another program's name for it or by its spelling.

use super::foreign::{FOREIGN, find};
use crate::cli::file_kind::mistaken;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use pipesim_language as dsl;
use pipesim_models::model_spec::transformer_named;
use pipesim_schedule::nearest::{either, nearest, plain, same_numbers};

/// Replaces clap's tips in `error`, which only compare spellings, by what `arguments` probably mean.
pub fn improve(error: &mut Error, program: &mut Command, arguments: &[String]) {
    if !error.use_stderr() {
        return; // requested help
    }
    program.build();
    let (path, verb) = asked(program, arguments);
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    if error.kind() == ErrorKind::MissingRequiredArgument && lacks_hardware(verb, arguments) {
        let why = "--model is predicted on hardware, found none; give it, too, as in --hardware h100-sxm\n";
        *error = Error::raw(ErrorKind::MissingRequiredArgument, why);
        return;
    }
    let found = match error.kind() {
        _ if one_hyphen(verb, arguments).is_some() => one_hyphen(verb, arguments),
        ErrorKind::UnknownArgument => {
            let name = context(ContextKind::InvalidArg).unwrap_or_default();
            match name.strip_prefix("--") {
                Some(name) => unknown_option(program, verb, &path, name, arguments),
                None => unknown_short(program, verb, &path, &name).or_else(|| unknown_word(verb, &name)),
            }
        }
        ErrorKind::InvalidSubcommand => {
            unknown_verb(verb, &context(ContextKind::InvalidSubcommand).unwrap_or_default())
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let option = context(ContextKind::InvalidArg).unwrap_or_default();
            let option = option.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default().to_string();
            let valid = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(names)) => names.clone(),
                _ => Vec::new(),
            };
            unknown_value(&option, &context(ContextKind::InvalidValue).unwrap_or_default(), &valid)
        }
        _ => return,
    };
    use ContextKind::{Suggested, SuggestedArg, SuggestedSubcommand, SuggestedValue};
    for guess in [SuggestedArg, SuggestedSubcommand, SuggestedValue, Suggested] {
        error.remove(guess);
    }
    if error.kind() == ErrorKind::UnknownArgument {
        // clap's usage line contains the option that it suggests.
        let usage = verb.clone().render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
    if let Some(tip) = found {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// Returns the verb asked for and the words that name it, or the program.
fn asked<'a>(program: &'a Command, arguments: &[String]) -> (String, &'a Command) {
    let (mut path, mut verb) = (program.get_name().to_string(), program);
    for argument in arguments.iter().skip(1) {
        let Some(found) = verb.find_subcommand(argument).filter(|found| found.get_name() != "help") else { break };
        path = format!("{path} {argument}");
        verb = found;
    }
    (path, verb)
}

/// Long names of a verb's options, aliases included.
fn longs(verb: &Command) -> Vec<&str> {
    let mut longs = Vec::new();
    for argument in verb.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let Some(name) = argument.get_long() else { continue };
        longs.push(name);
        longs.extend(argument.get_all_aliases().unwrap_or_default());
    }
    longs
}

/// Whether a model is named without the hardware that its costs need.
fn lacks_hardware(verb: &Command, arguments: &[String]) -> bool {
    let is_given = |option: &str| arguments.iter().any(|word| word.split('=').next() == Some(option));
    ["predict", "explain"].contains(&verb.get_name()) && is_given("--model") && !is_given("--hardware")
}

fn has(verb: &Command, option: &str) -> bool {
    longs(verb).contains(&option)
}

/// Finds a long option that is written with one hyphen: `-tp 8`.
fn one_hyphen(verb: &Command, arguments: &[String]) -> Option<String> {
    let longs = longs(verb);
    let written = arguments.iter().filter_map(|argument| argument.strip_prefix('-'));
    let mut names = written.map(|rest| rest.split('=').next().unwrap_or_default());
    let name = names.find(|name| name.len() > 1 && longs.contains(name))?;
    Some(format!("long options have two hyphens: '--{name}'"))
}

/// Returns an option's name without hyphens and filler words: `num-layers` and `n_layers` are both `layers`.
fn key(name: &str) -> String {
    const FILLERS: [&str; 8] = ["num", "n", "number", "of", "count", "name", "total", "the"];
    let words = name.split(['-', '_']).filter(|word| !FILLERS.contains(&word.to_lowercase().as_str()));
    plain(&words.collect::<String>())
}

/// Says what an option that `verb` does not have probably means.
fn unknown_option(program: &Command, verb: &Command, path: &str, name: &str, arguments: &[String]) -> Option<String> {
    let longs = longs(verb);
    if let Some(long) = longs.iter().find(|long| plain(long) == plain(name)) {
        return Some(format!("write '--{long}'"));
    }
    let is_it = |known: &str| key(known) == key(name);
    if let Some(note) = find(&FOREIGN.notes, is_it) {
        let counted =
            (key(name) == key("num-layers-per-virtual-pipeline-stage")).then(|| chunks_of(name, arguments)).flatten();
        return Some(counted.unwrap_or_else(|| note.to_string()));
    }
    if let Some(options) = find(&FOREIGN.flags, is_it) {
        let here = options.split(' ').find(|option| has(verb, option));
        let option = here.or(options.split(' ').next())?;
        let here_only = FOREIGN.meanings_of.get(verb.get_name()).and_then(|meanings| meanings.get(option));
        let meaning = here_only.or(FOREIGN.meanings.get(option))?;
        let missing = || format!(", but `{path}` does not have it{}", with(program, option));
        return Some(format!("'--{option}' {meaning}{}", here.map_or_else(missing, |_| String::new())));
    }
    if verbs(program).iter().any(|other| has(other, name)) {
        return Some(format!("`{path}` has no '--{name}'{}", with(program, name)));
    }
    if let Some(long) = longs.iter().find(|long| key(long) == key(name)) {
        return Some(format!("write '--{long}'"));
    }
    did_you_mean(&nearest(name, &longs), "--")
}

/// Says which `--chunks` layers per virtual stage mean for the model and the stages among `arguments`, or that there is none.
fn chunks_of(name: &str, arguments: &[String]) -> Option<String> {
    let after = |names: &[&str]| {
        let at = arguments.iter().position(|word| names.contains(&word.split('=').next().unwrap_or_default()))?;
        arguments[at]
            .split_once('=')
            .map_or_else(|| arguments.get(at + 1).cloned(), |(_, value)| Some(value.to_string()))
    };
    let number = |names: &[&str]| after(names)?.parse::<usize>().ok().filter(|number| *number > 0);
    let layers = transformer_named(&after(&["--model"])?)?.layers;
    let stages = number(&["--stages", "-p", "--pipeline-model-parallel-size"])?;
    let each = number(&[&format!("--{name}")])?;
    let all = stages.checked_mul(each)?;
    Some(if layers.is_multiple_of(all) {
        format!("write '--chunks {}': {layers} layers / ({stages} stages x {each})", layers / all)
    } else {
        let fits: Vec<String> = (1..=layers / stages)
            .filter(|each| layers.is_multiple_of(stages * each))
            .map(|each| each.to_string())
            .collect();
        let fits =
            if fits.is_empty() { "choose other stages".to_string() } else { format!("choose {}", either(&fits)) };
        let chunks = layers as f64 / all as f64;
        format!(
            "{layers} layers / ({stages} stages x {each}) are {chunks:.1} chunks, and it takes a whole number; {fits}"
        )
    })
}

fn did_you_mean(names: &[&str], hyphens: &str) -> Option<String> {
    let mut quoted: Vec<String> = names.iter().map(|name| format!("'{hyphens}{name}'")).collect();
    quoted.dedup();
    (!quoted.is_empty()).then(|| format!("did you mean {}?", either(&quoted)))
}

/// Returns all verbs, those below `report` included.
fn verbs(program: &Command) -> Vec<&Command> {
    program
        .get_subcommands()
        .filter(|verb| verb.get_name() != "help")
        .flat_map(|verb| {
            let below = verb.get_subcommands().filter(|verb| verb.get_name() != "help");
            std::iter::once(verb).chain(below)
        })
        .collect()
}

fn with(program: &Command, option: &str) -> String {
    let all = verbs(program);
    let names: Vec<&str> = all.iter().filter(|verb| has(verb, option)).map(|verb| verb.get_name()).collect();
    if names.is_empty() { String::new() } else { format!("; those that do: {}", names.join(", ")) }
}

/// Lists the verbs that have a short option that `verb` does not have.
fn unknown_short(program: &Command, verb: &Command, path: &str, name: &str) -> Option<String> {
    let mut letters = name.strip_prefix('-')?.chars();
    let letter = letters.next().filter(|_| letters.next().is_none())?;
    let of = |verb: &&Command| verb.get_arguments().any(|argument| argument.get_short() == Some(letter));
    let all = verbs(program);
    let others: Vec<&str> = all.iter().copied().filter(of).map(Command::get_name).collect();
    let is_elsewhere = !others.is_empty() && !of(&verb);
    is_elsewhere.then(|| format!("`{path}` has no '{name}'; those that do: {}", others.join(", ")))
}

/// Says what a word where none is expected probably means.
fn unknown_word(verb: &Command, word: &str) -> Option<String> {
    let ends = |endings: &[&str]| endings.iter().any(|ending| word.ends_with(ending));
    if word.starts_with('-') {
        return None;
    }
    if has(verb, "schedule")
        && (ends(&[".star", ".csv"]) || word.split([',', ':']).any(|name| dsl::named(name).is_ok()))
    {
        return Some(format!("a schedule follows -s, several are separated by commas: '-s {word}'"));
    }
    if has(verb, "stages") && word.parse::<u32>().is_ok() {
        return Some("numbers follow their option, as in '-p 4 -m 8'; several are separated by commas".to_string());
    }
    if has(verb, "output") && ends(&[".svg", ".png", ".pdf", ".html", ".json", ".tex"]) {
        return Some(format!("a file to write follows -o: '-o {word}'"));
    }
    None
}

/// Says what an unknown verb probably means.
fn unknown_verb(above: &Command, name: &str) -> Option<String> {
    if let Some(here) = find(&FOREIGN.verbs, |known| plain(known) == plain(name)) {
        return Some(format!("write `{here}`"));
    }
    if dsl::named(name).is_ok() {
        return Some(format!("a schedule follows -s: `pipesim predict -p 4 -m 8 -s {name}`"));
    }
    let names: Vec<&str> = above.get_subcommands().map(Command::get_name).collect();
    did_you_mean(&nearest(name, &names), "")
}

/// Says what a value that `option` does not accept probably means.
fn unknown_value(option: &str, value: &str, valid: &[String]) -> Option<String> {
    if let Some(why) = mistaken("", option, value).filter(|_| option != "costs") {
        return Some(why); // --costs says so itself
    }
    let tips = FOREIGN.values.get(option);
    if let Some(tip) = tips.and_then(|tips| find(tips, |name| plain(name) == plain(value))) {
        return Some(tip.to_string());
    }
    let valid: Vec<&str> = valid.iter().map(String::as_str).collect();
    let is_part = |name: &&str| value.split(|c: char| !c.is_alphanumeric()).any(|part| part == *name);
    if let Some(part) = valid.iter().find(|name| is_part(name)) {
        return Some(format!("did you mean '{part}'?"));
    }
    let like = nearest(value, &valid).into_iter().filter(|name| same_numbers(value, name));
    did_you_mean(&like.collect::<Vec<_>>(), "")
}
