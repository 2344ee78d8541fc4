//! Commands by chance: whatever is asked for is answered or refused, without a panic or a signal, and JSON is JSON with numbers in it.

use crate::support::{Dice, PROGRAM, golden_path, root};
use clap::ArgAction;
use pipesim::internals::cli;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Commands to begin with, by verb. `$M` is a folder of one measured step, `$K` one of traces, `$F` one of schedules and costs.
const BEGINNINGS: &[(&str, &str)] = &[
    ("predict", "-p P -m M -s S"),
    ("predict", "-p P -m M -s S -s S"),
    ("predict", "-p P -m M -s S --costs C"),
    ("predict", "-p P,P -m M..9+2 -s S"),
    ("predict", "--model MODEL --hardware HARDWARE -p P --batch 16 -s S"),
    ("predict", "--model gpt2 --hardware h100-sxm -p 1,2 --tp 1,2 --dp 2 -m M -s 1f1b,zb-v"),
    ("explain", "-p P -m M -s S"),
    ("explain", "-p P -m M -s S --costs C"),
    ("explain", "--model MODEL --hardware HARDWARE -p P -m M"),
    ("explain", "$M"),
    ("check", "-p P -m M -s S"),
    ("check", "-p P -m M -s S -s S"),
    ("export", "-p P -m M -s S --to T"),
    ("plan", "--model MODEL --hardware HARDWARE --gpus 4 --batch 16 --seq 256"),
    ("compare", "$M"),
    ("compare", "$M $F/two.json"),
    ("import", "$K -o -"),
    ("schedules", "S"),
    ("schedules", ""),
];

/// Values by the name of an option, or by a capital of [`BEGINNINGS`]: sensible ones and others.
const VALUES: &[(&str, &str)] = &[
    ("P", "1 2 2 2 2 3 4 4 4 4 4 5 8 8 0"),
    ("M", "1 2 3 4 4 6 8 8 8 8 8 16 16 0"),
    (
        "S",
        "1f1b 1f1b 1f1b gpipe gpipe zb-h1 zb-v zb-v interleaved-1f1b interleaved-1f1b 1f1b,gpipe $F/own.star 1f1b gpipe naive zb-h1 zb-h2 zb-v dualpipe dualpipe-v chimera chimera:v=4 hanayo:waves=3 v-half v-min v-zb 1f1b-v \
         zb-v-greedy interleaved-1f1b:v=3 interleaved-zb group-interleaved:group=3 looped-bfs:v=2 auto eager-1f1b zb-1p zb-2p \
         1f1b,zb-v gpipe:v=2 none 1f1b:v=0 , hanayo:waves=-1 auto:v=7 $F/own.star $F/wrong.star $F/two.csv $F $F/none.csv 1f1b,",
    ),
    (
        "C",
        "F=1,B=2 F=1,B=2,comm=0.1 F=1ms,B=2ms F=1,I=2,W=1 F=1.5 comm=1us,F=1ms F=2,B=3 keep=0.5 F=1,B=2 F=1:2,B=2:4 F=1/2,B=3 F=1/2/1/2,B=2 F=1ms,I=2us F=0,B=0 F=1e-9 F=999999999999,B=1 F=-1 F=1,F=2 comm=0.1 \
         F=1,I=1,W=1,comm=0.5,keep=0.5 keep=2 B=1,W=2 F=nan F=1:,B=1 F=1:2:3,B=1:2 unshard=1,reduce=2 embedding=1,loss=1 S=1 x=1 = \
         $F/two-stages.csv $F/two-stages.toml",
    ),
    ("MODEL", "gpt2 gpt2 gpt2 llama-3-8b gpt2-xl llama-3-8b qwen3-30b-a3b $F/eight.json none $F/two.json"),
    ("HARDWARE", "h100-sxm h100-sxm h100-sxm h100-sxm a100-sxm-80gb gb200 none $F/own.star"),
    ("T", "json dot pytorch-csv pytorch-csv-comms none"),
    ("again", "$F/none"),
    ("batch", "1 8 16 17 64"),
    ("chunks", "1 2 4 65"),
    ("contention", "1,1.1 1 0.5"),
    ("costs", "F=1,B=2 F=1:2,B=3 F=1ms,B=2 comm=1 F=2,comm=0.1"),
    ("cp", "1 2 3"),
    (
        "delivery",
        "one-sided buffered(1) buffered(0) channel channel:per-peer,ahead batched megatron pytorch pytorch:2.11",
    ),
    ("columns", "bubble,busy none x bubble,bubble"),
    ("dp", "1 2 4 3 1,2"),
    ("effort", "1 2"),
    ("ep", "1 2 8"),
    ("exact", "1 2000"),
    ("fail-if", "bubble>0.1 makespan>=1ms memory_bytes>1 bubble_error>2% x>1"),
    ("fix", "tp=2 pp=2,tp=1 layers=6/6 x=1 recompute=full tp=3"),
    ("font-size", "8 14 1000"),
    ("framework", "pytorch megatron-core nanotron x"),
    ("framework-version", "2026-08 2.11 x"),
    ("from", "$M"),
    ("gpus", "4 8 2,4 3"),
    ("hardware", "h100-sxm gb200 h100-sxm:1,a100-sxm-80gb:1"),
    ("jitter", "0.1 0 10"),
    ("label", "PP:0WAIT=W x"),
    ("layers", "4 3,1 2,2,2,2 0 1,1 7"),
    ("layout", "Et*2|t*2L Et|t|t|tL torchtitan |||| E"),
    ("link-contention", "1,1.5 2"),
    ("lora", "8 16:q_proj 0 x"),
    ("max-active-stages", "1 3"),
    ("max-ops", "10 1000"),
    ("max-ticks", "10 1000"),
    ("memory-cap", "1 2.5 0 8 80GiB 1B 4G"),
    ("micro", "2 8 4,8"),
    ("micro-batch-size", "1 2 1,2"),
    ("model", "gpt2 llama-3-8b"),
    ("only", "1 2 9"),
    ("output", "x.svg x.html x.json x.csv x.png x.pdf x.trace.json - folder/ x.none $F x.svg.gz"),
    ("overlap-slowdown", "1 1.2 0.1"),
    ("packed", "128 64,256 0"),
    ("pipeline", "0 1 7"),
    ("profile", "$F/costs.json $F/two.json"),
    ("question", "$F/two.toml $F/none.toml $F/two.json"),
    ("recompute", "none selective full layernorm moe_act,layernorm x"),
    ("resume", "journal $F"),
    ("rounds", "1 2 3"),
    ("samples", "1 20"),
    ("save-question", "saved.toml saved.json"),
    ("schedule", "gpipe zb-v none"),
    ("schedules", "1f1b zb-v all 1f1b,gpipe"),
    ("seq", "1 256 1000"),
    ("set", "v=2 group=0 waves=3 x"),
    ("slice-lengths", "1:1 3:1 4:3:2:2 1"),
    ("slots", "1 2"),
    ("slow-link", "0-1=2 0=3 9=2 1-1=2 x"),
    ("stack", "megatron-core torchtitan fsdp none"),
    ("stages", "1 2 4 2,4"),
    ("step", "0 3 4 99"),
    ("row-height", "20 5mm 1"),
    ("straggler", "0=1.3 1=0.001 9=2 0=0 x"),
    ("title", "Mine"),
    ("top", "1 3"),
    ("torch", "2.11 2.5"),
    ("tp", "1 2 8 1,2"),
    ("transfer", "0.3 0 1e9"),
    ("unshard-lookahead", "full auto 1,1"),
    ("width", "300 900px 3in"),
    ("window", "0..4 2.. 5..1"),
];

/// Values that few options have.
const HOSTILE: &[&str] = &[
    "",
    " ",
    "-1",
    "0",
    "nan",
    "inf",
    "1e400",
    "99999999999999999999",
    "4294967296",
    "1.5",
    "x",
    "4,8",
    "2..1",
    "2..8*2",
    "a=b",
    "=",
    "%",
    "\u{1b}[2J",
    "é",
    "/",
    "..",
    "-",
    "--",
    "@x",
    "1/0",
    "1:2",
    "true",
    "None",
    "$(x)",
    "'",
    "\\",
];

/// Fields that the book calls null at times.
const MAY_BE_NULL: &[&str] = &["survives", "predicted", "measured", "error", "memory_cap", "noise", "bubble", "paper"];

fn one(dice: &mut Dice, words: &str) -> String {
    let words: Vec<&str> = words.split_whitespace().collect();
    words[dice.below(words.len())].to_string()
}

/// An option of a verb: its name, and whether it is a switch; the values that it names.
struct Choice {
    name: String,
    is_switch: bool,
    values: Vec<String>,
}

fn choices() -> BTreeMap<String, Vec<Choice>> {
    let of = |argument: &clap::Arg| {
        let name = argument.get_long().filter(|name| !["help", "version"].contains(name))?.to_string();
        let is_switch = matches!(argument.get_action(), ArgAction::SetTrue | ArgAction::Count);
        let values = argument.get_possible_values().iter().map(|value| value.get_name().to_string()).collect();
        Some(Choice { name, is_switch, values })
    };
    let program = cli::command();
    let verbs = program.get_subcommands();
    verbs.map(|verb| (verb.get_name().to_string(), verb.get_arguments().filter_map(of).collect())).collect()
}

/// A value of an option.
fn value(dice: &mut Dice, choice: &Choice) -> String {
    let known = VALUES.iter().find(|(name, _)| *name == choice.name);
    match dice.below(12) {
        // files are written only where they are gone afterwards
        0 if !["output", "resume", "save-question"].contains(&choice.name.as_str()) => {
            HOSTILE[dice.below(HOSTILE.len())].to_string()
        }
        _ if !choice.values.is_empty() => choice.values[dice.below(choice.values.len())].clone(),
        _ => one(dice, known.map_or("1 2 0.5", |(_, words)| words)),
    }
}

/// A command: a beginning with values for its capitals, and up to three options of its verb.
fn random_command(dice: &mut Dice, choices: &BTreeMap<String, Vec<Choice>>) -> Vec<String> {
    let (verb, beginning) = BEGINNINGS[dice.below(BEGINNINGS.len())];
    let drawn = |word: &str, dice: &mut Dice| -> String {
        let parts = word.split_inclusive([',', '.', '+']).map(|part| {
            let name = part.trim_end_matches([',', '.', '+']);
            let found = VALUES.iter().find(|(known, _)| *known == name && name.chars().all(|c| c.is_ascii_uppercase()));
            found.map_or_else(|| part.to_string(), |(_, words)| part.replacen(name, &one(dice, words), 1))
        });
        parts.collect()
    };
    let mut words = vec![verb.to_string()];
    words.extend(beginning.split_whitespace().map(|word| drawn(word, dice)));
    for _ in 0..dice.below(4) * dice.below(2) {
        let choice = &choices[verb][dice.below(choices[verb].len())];
        let flag = format!("--{}", choice.name);
        match dice.below(12) {
            0 => words.push(flag), // perhaps without its value
            _ if choice.is_switch => words.push(flag),
            1 => words.extend([flag, value(dice, choice)]), // a value that begins with - is an option
            _ => words.push(format!("{flag}={}", value(dice, choice))),
        }
    }
    let asks = |name: &str| words.iter().any(|word| word.starts_with(name));
    if !asks("--format") && choices[verb].iter().any(|choice| choice.name == "format") && dice.below(2) == 0 {
        words.extend(["--format".to_string(), "json".to_string()]);
    } else if verb == "schedules" && words.len() == 1 {
        words.push("--json".to_string());
    }
    if dice.below(40) == 0 {
        words.remove(dice.below(words.len()));
    }
    words
}

/// Files that commands name.
fn files(folder: &Path) {
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write("own.star", "def device(r, p, m):\n    return m * F + m * B\n");
    write("wrong.star", "def device(r, p, m):\n    return m * B\n");
    write("two.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    write("two.toml", "version = 1\nstages = 2\nmicro = 4\nschedule = \"1f1b\"\n");
    write("two-stages.csv", "F,B\n1,2\n2,4\n");
    write("two-stages.toml", "F = [1, 2]\nB = [2, 4]\n");
    std::fs::copy(golden_path("reports/eight.json"), folder.join("eight.json")).unwrap();
    let costs = folder.join("costs.json").display().to_string();
    let two = folder.join("two.json").display().to_string();
    let run = root().join("examples/slow-stage.json").display().to_string();
    for words in [vec!["profile", "--from", &run, "-o", &costs], vec!["predict", "-p2", "-m2", "-s1f1b", "-o", &two]] {
        assert!(Command::new(PROGRAM).args(&words).output().unwrap().status.success(), "{words:?}");
    }
}

/// The names of all options of a verb, hidden ones too.
pub fn options_of(verb: &str) -> Vec<String> {
    choices()[verb].iter().map(|choice| choice.name.clone()).collect()
}

/// Random commands of a verb, without the verb and files that they would write, in `folder`.
pub fn commands_of(verb: &'static str, seed: u64, folder: &Path) -> impl Iterator<Item = Vec<String>> {
    files(folder);
    let (mut dice, choices, here) = (Dice(seed), choices(), folder.display().to_string());
    let command = move || random_command(&mut dice, &choices);
    let commands = std::iter::repeat_with(command).filter(move |words| words[0] == verb);
    const NOT_ASKED: &[&str] = &[
        "--format",
        "json",
        "--output",
        "-o",
        "--fail-if",
        "--question",
        "--save-question",
        "--ascii",
        "--exact",
        "--to",
        "--resume",
    ];
    let is_asked = |word: &&String| !NOT_ASKED.iter().any(|option| word.starts_with(option));
    commands.map(move |words| words[1..].iter().filter(is_asked).map(|word| word.replace("$F", &here)).collect())
}

/// The fields that are null.
fn nulls(json: &Value, name: &str, found: &mut Vec<String>) {
    match json {
        Value::Null if !MAY_BE_NULL.contains(&name) => found.push(name.to_string()),
        Value::Array(list) => list.iter().for_each(|one| nulls(one, name, found)),
        Value::Object(fields) => fields.iter().for_each(|(name, one)| nulls(one, name, found)),
        _ => {}
    }
}

/// What is wrong with the answer to a command, given within 60 s of the processor and 120 s; `answered` counts those that are no refusal.
fn fault(words: &[String], folder: &Path, answered: &AtomicUsize) -> Option<String> {
    let limited = "ulimit -t 60; exec timeout 120 \"$P\" \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", limited, "bash"]).args(words).env("P", PROGRAM).env("RUST_BACKTRACE", "0").current_dir(folder);
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let (code, told) = (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned());
    let wrong = |what: &str| Some(format!("{words:?}: {what}; exit code {code:?}, said {told:.600}"));
    if !matches!(code, Some(0..=6)) {
        return wrong("expected an exit code from 0 to 6");
    }
    if ["a bug in pipesim", "panicked", "overflowed"].iter().any(|sign| told.contains(sign)) {
        return wrong("a bug");
    }
    if !matches!(code, Some(0 | 4)) {
        return if told.contains("error: ") { None } else { wrong("refused without a reason") };
    }
    answered.fetch_add(1, Ordering::Relaxed);
    let is_json = words.windows(2).any(|two| two == ["--format", "json"]) || words.iter().any(|w| w == "--format=json");
    let prints = words[0] != "import"
        && !words.iter().any(|word| ["--to", "--help", "-h"].iter().any(|flag| word.starts_with(flag)));
    if !(prints && (is_json || words.iter().any(|word| word == "--json"))) {
        return None;
    }
    let Ok(json) = serde_json::from_slice::<Value>(&output.stdout) else { return wrong("expected JSON") };
    let mut found = Vec::new();
    nulls(&json, "", &mut found);
    if found.is_empty() { None } else { wrong(&format!("null in {found:?}")) }
}

/// `PIPESIM_RANDOM_COMMANDS` is their number, `PIPESIM_RANDOM_SEED` begins elsewhere.
#[test]
fn random_commands_are_answered_or_refused() {
    let setting = |name: &str, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let number = setting("PIPESIM_RANDOM_COMMANDS", 100);
    let mut dice = Dice(setting("PIPESIM_RANDOM_SEED", 2000));
    let choices = choices();
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    let run = root().join("examples/slow-stage.json").display().to_string();
    let (traces, files) = (golden_path("kineto/plain_gpipe_p2_m4"), folder.path().display().to_string());
    let named = |word: String| word.replace("$M", &run).replace("$K", &traces).replace("$F", &files);
    let commands: Vec<Vec<String>> =
        (0..number).map(|_| random_command(&mut dice, &choices).into_iter().map(named).collect()).collect();
    let answered = AtomicUsize::new(0);
    let (some, others) = commands.split_at(commands.len() / 2);
    let faults = |commands: &[Vec<String>]| -> Vec<String> {
        let folder = tempfile::tempdir().unwrap(); // for what they write
        commands.iter().filter_map(|words| fault(words, folder.path(), &answered)).collect()
    };
    let wrong = std::thread::scope(|scope| {
        let beside = scope.spawn(|| faults(some));
        [faults(others), beside.join().unwrap()].concat()
    });
    let answered = answered.into_inner();
    println!("{answered} of {number} are answered");
    assert!(5 * answered >= commands.len(), "too many are refused: {answered} of {number} are answered");
    assert!(wrong.is_empty(), "{} of {number}:\n{}", wrong.len(), wrong.join("\n"));
}
