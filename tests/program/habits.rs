//! What people expect of any program: completions that know names and files, manual pages, a version that says of which commit.

use crate::cli::{fails, pipesim};
use crate::support::PROGRAM;
use std::path::Path;
use std::process::Command;

/// What bash offers for a line, whose last word is being typed, in `folder`.
fn offered(line: &str, folder: &Path) -> Vec<String> {
    let script = "source <(pipesim completions bash)
        complete -p pipesim >/dev/null || exit 1
        function=$(complete -p pipesim | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        COMP_WORDS=($LINE_TYPED ''); [ \"${LINE_TYPED: -1}\" = ' ' ] || unset 'COMP_WORDS[-1]'
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_TYPE=9
        $function pipesim \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let path = format!("{}:{}", Path::new(PROGRAM).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-c", script])
        .env("LINE_TYPED", line)
        .env("PATH", path)
        .current_dir(folder)
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim().to_string()).collect()
}

#[test]
fn completions_know_verbs_schedules_and_files() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["mine.star", "mine.csv", "mine.txt", "costs.json"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let offers = |line: &str, wanted: &[&str], unwanted: &[&str]| {
        let found = offered(line, folder.path());
        wanted.iter().for_each(|word| assert!(found.iter().any(|one| one == word), "{line}: no {word} in {found:?}"));
        unwanted.iter().for_each(|word| assert!(!found.iter().any(|one| one == word), "{line}: {word} in {found:?}"));
    };
    offers("pipesim ex", &["explain", "export"], &["predict"]);
    offers("pipesim predict --mem", &["--memory-cap"], &["--micro"]);
    offers("pipesim predict -s zb-", &["zb-h1", "zb-h2", "zb-v"], &["1f1b", "mine.star"]);
    offers("pipesim predict -p 4 -m 8 -s m", &["mine.star", "mine.csv"], &["mine.txt", "zb-v"]);
    offers("pipesim run --schedule 1f1b,v-", &["1f1b,v-half", "1f1b,v-min"], &["v-half"]);
    offers("pipesim explain -s a", &["auto"], &["1f1b"]);
    offers("pipesim schedules interleaved", &["interleaved-1f1b", "interleaved-zb"], &["zb-v"]);
    offers("pipesim predict --profile co", &["costs.json"], &["mine.star"]);
    offers("pipesim predict --format ", &["table", "json", "csv", "md"], &["mine.txt"]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, out, err) = pipesim(&format!("completions {shell}"));
        assert!(code == 0 && out.contains("COMPLETE") && out.contains("pipesim"), "{shell}: {out}{err}");
    }
}

#[test]
fn completions_know_models_and_hardware_and_quote_names_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let odd = ["two words.json", "it's $HOME.json", "a;b.json", "back`tick.json"];
    for name in odd.iter().chain(&["gpu farm.toml", "plain.toml", "plain.json", "plain.star"]) {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let found = |line: &str| offered(line, folder.path());
    let has = |line: &str, word: &str| found(line).iter().any(|one| one == word);
    for (line, wanted, unwanted) in [
        ("pipesim predict --model llama-3-", "llama-3-70b", "gpt2"),
        ("pipesim predict --model plain", "plain.json", "plain.toml"),
        ("pipesim predict --hardware h", "h100-sxm", "a100-sxm-80gb"),
        ("pipesim predict --hardware pl", "plain.toml", "plain.json"),
        ("pipesim run --model t", "tiny", "llama-3-70b"),
        ("pipesim profile --model gpt2-", "gpt2-xl", "tiny"),
    ] {
        assert!(has(line, wanted) && !has(line, unwanted), "{line}: {:?}", found(line));
    }
    // What is inserted is one word to the shell, and that word is the file's name.
    let quoted = found("pipesim predict --profile ");
    for name in odd {
        let output = |word: &&String| {
            let line = format!("set -- {word}; test $# = 1 && printf %s \"$1\"");
            Command::new("bash").args(["-c", &line]).env("HOME", "/nowhere").output().unwrap().stdout
        };
        assert!(quoted.iter().any(|word| output(&word) == name.as_bytes()), "{name}: {quoted:?}");
    }
}

#[test]
fn manual_pages_are_without_fault() {
    for verb in ["", "predict", "explain", "report accuracy", "man"] {
        let (code, page, err) = pipesim(&format!("man {verb}"));
        assert_eq!(code, 0, "{verb}: {err}");
        assert!(page.contains(".TH") && page.contains(".SH SYNOPSIS"), "{page}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &page).unwrap();
        let groff = Command::new("groff").args(["-man", "-ww", "-Tutf8", "-z", "-Kutf8"]).arg(file.path()).output();
        match groff {
            Ok(found) => {
                let told = String::from_utf8_lossy(&found.stderr);
                assert!(
                    found.status.success() && !told.contains("warning") && !told.contains("error"),
                    "{verb}: {told}"
                );
            }
            Err(error) => println!("skipped: groff, which would check the page: {error}"),
        }
    }
    assert!(pipesim("man").1.contains("pipesim\\-predict(1)"));
    fails("man pretend", 2, &["'pretend'", "predict"]);
}

#[test]
fn the_version_says_of_which_commit_and_day() {
    let (code, out, _) = pipesim("--version");
    let (version, rest) = out.trim().split_once(" (").unwrap();
    let (commit, day) = rest.trim_end_matches(')').split_once(", ").unwrap();
    assert_eq!((code, version), (0, concat!("pipesim ", env!("CARGO_PKG_VERSION"))));
    let known = commit != "unknown";
    assert!(!known || commit.len() == 12 && commit.chars().all(|c| c.is_ascii_hexdigit()), "{commit}");
    assert!(day == "unknown" || day.len() == 10 && day.split('-').count() == 3, "{day}");
}

#[test]
fn the_systems_own_description_of_a_terminal_counts() {
    // tput reads the same descriptions by another program
    for (term, coded) in [("vt100", false), ("xterm-256color", true), ("ansi", true), ("vt220", false)] {
        let told = Command::new("tput").args(["-T", term, "colors"]).output();
        let colours = told.ok().filter(|told| told.status.success());
        let colours = colours.and_then(|told| String::from_utf8_lossy(&told.stdout).trim().parse::<i32>().ok());
        let Some(colours) = colours else {
            println!("skipped: tput does not know {term} here");
            continue;
        };
        assert_eq!(colours >= 8, coded, "{term}");
        let output = Command::new(PROGRAM)
            .args(["predict", "-q", "-p", "2", "-m", "2", "-s", "1f1b"])
            .envs([("TERM", term), ("CLICOLOR_FORCE", "1")])
            .env_remove("NO_COLOR")
            .env_remove("COLORTERM")
            .output()
            .unwrap();
        let deep = String::from_utf8_lossy(&output.stdout).contains("\u{1b}[48;5;");
        assert!(!coded || deep == (colours >= 256), "{term}: {colours} colours");
    }
}

/// Words of the glossary are explained, and what is none gets a hint; verbs keep their help.
#[test]
fn help_explains_words() {
    let (code, out, err) = pipesim("help bubble");
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("bubble: the idle share of all devices' time: 1 - busy time"), "{out}");
    let (_, out, _) = pipesim("help imbalance");
    assert_eq!(out.matches("imbalance").count(), 3, "both senses: {out}");
    let (code, out, _) = pipesim("help predict");
    assert!(code == 0 && out.contains("Usage: pipesim predict"), "{out}");
    let (code, out, err) = pipesim("help bubbel");
    assert!(code == 2 && out.is_empty() && err.contains("did you mean bubble?"), "{err}");
    let (code, _, err) = pipesim("");
    assert_eq!(code, 2);
    assert!(err.lines().count() == 6 && err.lines().all(|line| line.chars().count() <= 100), "{err}");
}

/// A project's file adds a model and hardware where a verb asks for them; what is typed wins, and costs need neither.
#[test]
fn a_project_has_options_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("a/b");
    std::fs::create_dir_all(&below).unwrap();
    let file = folder.path().join("pipesim.toml");
    std::fs::write(&file, "model = \"llama-3-8b\"\nhardware = \"h200\"\npalette = \"grey\"\n").unwrap();
    let asked = |line: &str, variables: &[(&str, &str)]| {
        let mut command = Command::new(PROGRAM);
        command.args(line.split_whitespace()).current_dir(&below).envs(variables.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let line = "predict -p 4 -m 8 -s 1f1b --format json";
    let typed = asked(&format!("{line} --model llama-3-8b --hardware h200-sxm"), &[("PIPESIM_CONFIG", "")]);
    let (code, out, err) = asked(line, &[]);
    assert_eq!((code, out), (0, typed.1.clone()), "{err}");
    assert!(err.contains("pipesim.toml adds --model=llama-3-8b --hardware=h200"), "{err}");
    let other = asked(&format!("{line} --hardware h100-sxm"), &[]).1;
    let both = asked(&format!("{line} --model llama-3-8b --hardware h100-sxm"), &[("PIPESIM_CONFIG", "")]).1;
    assert_eq!(other, both, "what is typed wins");
    let units = asked(&format!("{line} --costs F=1"), &[]);
    assert!(units.1.contains("\"unit\"") && !units.2.contains("adds"), "{}", units.2);
    assert!(asked("schedules", &[]).2.is_empty());
    let saved = asked("predict -p 4 -m 8 -s 1f1b --costs F=1 --save-question q.toml", &[]);
    assert_eq!(asked("predict q.toml", &[]).1, saved.1, "a question is complete");
    let version = "model = \"llama-3-8b\"\nhardware = \"h200\"\nframework-version = \"0.18\"\n";
    std::fs::write(below.join("pipesim.toml"), version).unwrap();
    for typed in ["--framework-version 2026-08", "--stack torchtitan", "--help"] {
        let (code, _, err) = asked(&format!("predict -p 4 -m 8 -s 1f1b {typed}"), &[]);
        assert_eq!(code, 0, "{typed}: {err}");
    }
    std::fs::remove_file(below.join("pipesim.toml")).unwrap();
    let picture = "predict -p 2 -m 2 -s 1f1b --costs F=1 -q -o p.svg";
    let drawn = |variables: &[(&str, &str)]| {
        let (code, _, err) = asked(picture, variables);
        assert_eq!(code, 0, "{err}");
        std::fs::read_to_string(below.join("p.svg")).unwrap()
    };
    let (grey, plain) = (drawn(&[]), drawn(&[("PIPESIM_CONFIG", "")]));
    assert_ne!(grey, plain);
    assert_eq!(grey, drawn(&[("PIPESIM_CONFIG", ""), ("PIPESIM_PALETTE", "grey")]));
    for (text, said) in [
        ("modl = \"x\"", "found modl (did you mean model?)"),
        ("model = 1", "expected model to be a text in quotes"),
        ("palette = \"gry\"", "expected palette to be one of default, colour-blind, grey, found gry"),
        ("model", "expected TOML"),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, out, err) = asked(line, &[]);
        assert!(code == 2 && out.is_empty() && err.contains(said), "{text}: {err}");
    }
}
