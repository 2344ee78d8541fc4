//! The server of `pipesim explore`: what requests may name, and what they get.

use crate::support::{Dice, PROGRAM};
use pipesim::internals::cli;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running server, whose folders of runs are in `around`.
struct Served {
    child: Child,
    host: String,
    token: String,
    around: tempfile::TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start() -> Served {
        let around = tempfile::tempdir().unwrap();
        let mut command = Command::new(PROGRAM);
        command.arg("explore").env("TMPDIR", around.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (host, token) = line.trim().trim_start_matches("http://").split_once("/?token=").unwrap();
        Served { host: host.to_string(), token: token.to_string(), child, around }
    }

    /// Asks for a run; returns the status and the body.
    fn ask(&self, args: &[&str], files: &Value) -> (u16, String) {
        let body = json!({"args": args, "files": files, "columns": 100}).to_string();
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let (host, token, length) = (&self.host, &self.token, body.len());
        write!(
            stream,
            "POST /run HTTP/1.0\r\nHost: {host}\r\nX-Pipesim-Token: {token}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
    }

    /// Runs a command line; returns its exit code and what it says on stderr.
    fn run(&self, args: &[&str], files: &Value) -> (i64, String) {
        let (status, body) = self.ask(args, files);
        assert_eq!(status, 200, "{args:?}: {body}");
        let found: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{args:?}: {error}: {body}"));
        (found["code"].as_i64().unwrap(), found["err"].as_str().unwrap().to_string())
    }
}

/// The explorer in a terminal, by `script`; ends when dropped.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Terminal {
    /// Starts `explore` with these options where `programs` has the programs that open addresses; returns the address it prints, too.
    fn start(options: &str, programs: &Path, display: &str) -> (Terminal, String) {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("script");
        command.args(["-qfec", &format!("{PROGRAM} explore {options}"), "/dev/null"]);
        command.env("PATH", format!("{}:{path}", programs.display())).env("DISPLAY", display);
        command.env_remove("WAYLAND_DISPLAY").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut terminal = Terminal(command.spawn().unwrap());
        let lines = BufReader::new(terminal.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.map(|line| line.trim().to_string()).find(|line| line.starts_with("http://")).unwrap();
        (terminal, address)
    }
}

/// The first line and the headers of the answer to a request for an address.
fn head_of(address: &str) -> String {
    let (host, path) = address.trim_start_matches("http://").split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).split("\r\n\r\n").next().unwrap().to_string()
}

#[test]
fn a_terminal_with_a_display_opens_a_browser_at_an_address_that_works_once() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (program, opened) = (folder.path().join("xdg-open"), folder.path().join("opened"));
    fs::write(&program, "#!/bin/sh\ncd \"$(dirname \"$0\")\" && printf %s \"$1\" >new && mv new opened\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for (options, display) in [("", ""), ("--no-open", ":7")] {
        let (_terminal, _) = Terminal::start(options, folder.path(), display);
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!opened.exists(), "{options} with display '{display}'");
    }
    let (_terminal, printed) = Terminal::start("", folder.path(), ":7");
    let begun = std::time::Instant::now();
    while !opened.exists() && begun.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let once = fs::read_to_string(&opened).unwrap();
    let token = printed.split_once("?token=").unwrap().1;
    assert!(once.contains("/?once=") && !once.contains(token), "{once}");
    let first = head_of(&once);
    assert!(first.contains(" 303 ") && first.contains(&format!("Location: /?token={token}")), "{first}");
    assert!(head_of(&once).contains(" 403 "), "it works twice");
    assert!(head_of(&printed).contains(" 200 "));
}

#[test]
fn the_explorer_begins_with_a_job_whose_prediction_it_can_run() {
    let folder = tempfile::tempdir().unwrap();
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/job/train.sh");
    let line = format!("--job {} --hardware h100-sxm", job.display());
    let (_terminal, address) = Terminal::start(&line, folder.path(), "");
    let (host, path) = address.trim_start_matches("http://").split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let facts = page.split_once("id=\"facts\">").unwrap().1.split_once("</script>").unwrap().0;
    let start = serde_json::from_str::<Value>(facts).unwrap()["start"].clone();
    let expected = json!({"mode": "job", "job": "--job train.sh", "hardware": "h100-sxm"});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&start["state"][field], value, "{field}");
    }
    let served = Served::start();
    let args = ["predict", "--job", "train.sh", "--hardware", "h100-sxm", "--format", "json"];
    let (code, told) = served.run(&args, &start["files"]);
    assert_eq!(code, 0, "{told}");
}

/// All files below a folder with their contents, but for the folders of runs.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && !name.starts_with("pipesim-explore-") {
            all.extend(files(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else if path.is_file() {
            all.insert(name, fs::read(&path).unwrap());
        }
    }
    all
}

/// Command lines that work, to add a hostile value to.
const LINES: [(&str, &[&str]); 9] = [
    ("predict", &["--stages", "2", "--micro", "4"]),
    ("plan", &["--model", "gpt2", "--hardware", "h100-sxm", "--gpus", "2", "--batch", "4", "--seq", "64"]),
    ("explain", &["--stages", "2", "--micro", "4"]),
    ("check", &["--stages", "2", "--micro", "4"]),
    ("export", &["--stages", "2", "--micro", "4", "--schedule", "1f1b", "--to", "json"]),
    ("import", &["run.json"]),
    ("compare", &["run.json"]),
    ("schedules", &[]),
    ("tour", &[]),
];

/// Values that lead out of the folder, some to files that are there.
fn hostile(around: &Path) -> Vec<String> {
    let absolute = around.join("victim.json").display().to_string();
    let out = [
        "..",
        "../",
        "../victim.json",
        "a/../../victim.toml",
        "./../victim.star",
        "~",
        "~/victim.json",
        "*/../../x.csv",
        ".?/victim.json",
    ];
    let parts =
        ["x,..", "F=..", "mine.star,../victim.star", "x=../victim.json", "../victim.svg", "../new/", "/etc/passwd"];
    out.into_iter().chain(parts).map(str::to_string).chain([absolute]).collect()
}

/// The options and arguments of a verb that take a value, each with its spellings, and whether it is said to be a path.
fn options(verb: &clap::Command) -> Vec<(String, Vec<String>, bool)> {
    let takes = |argument: &&clap::Arg| argument.get_action().takes_values() && !argument.is_global_set();
    let one = |argument: &clap::Arg| {
        let names: Vec<String> = argument.get_value_names().into_iter().flatten().map(ToString::to_string).collect();
        let of_path =
            |name: &String| ["FILE", "PATH", "DIR", "TRACE"].iter().any(|part| name.to_uppercase().contains(part));
        let spellings = argument.get_long_and_visible_aliases().into_iter().flatten().map(|long| format!("--{long}"));
        let short = argument.get_short().map(|short| format!("-{short}"));
        (argument.get_id().to_string(), spellings.chain(short).collect(), names.iter().any(of_path))
    };
    verb.get_arguments().filter(takes).map(one).collect()
}

#[test]
fn no_option_of_a_served_verb_leaves_the_folder() {
    let served = Served::start();
    for name in ["victim.json", "victim.toml", "victim.star", "victim.svg", "x.csv"] {
        fs::write(served.around.path().join(name), "untouched").unwrap();
    }
    let before = files(served.around.path());
    let (hostile, mut program, dice) = (hostile(served.around.path()), cli::command(), &mut Dice(7));
    program.build();
    let (mut asked, mut paths, mut refused) = (0, BTreeSet::new(), BTreeSet::new());
    for (verb, usual) in LINES {
        for (id, spellings, is_path) in options(program.find_subcommand(verb).unwrap()) {
            if is_path {
                paths.insert((verb, id.clone()));
            }
            for spelling in if spellings.is_empty() { vec![String::new()] } else { spellings } {
                for joined in [false, true] {
                    let value = &hostile[dice.below(hostile.len())];
                    let words = match (spelling.len(), joined) {
                        (0, _) => vec![value.clone()],
                        (2, true) => vec![format!("{spelling}{value}")],
                        (_, true) => vec![format!("{spelling}={value}")],
                        _ => vec![spelling.clone(), value.clone()],
                    };
                    let replaced = |word: &&str| *word == spelling.as_str();
                    let at = usual.iter().position(replaced);
                    let rest = usual.iter().enumerate().filter(|(n, _)| at.is_none_or(|at| *n != at && *n != at + 1));
                    let args: Vec<&str> = [verb]
                        .into_iter()
                        .chain(rest.map(|(_, word)| *word))
                        .chain(words.iter().map(String::as_str))
                        .collect();
                    let (code, said) = served.run(&args, &json!({}));
                    assert!(code != 0, "{args:?} was run: {said}");
                    if said.contains("found the path") {
                        refused.insert((verb, id.clone()));
                    }
                    asked += 1;
                }
            }
        }
    }
    assert!(asked >= 200, "{asked} requests");
    let missed: Vec<_> = paths.difference(&refused).collect();
    assert!(paths.len() > 15 && missed.is_empty(), "{} paths; never refused: {missed:?}", paths.len());
    assert!(files(served.around.path()) == before, "files beside the folder were changed");
}

#[test]
fn files_of_a_request_name_no_others() {
    let served = Served::start();
    fs::write(served.around.path().join("victim.toml"), "base = \"h100-sxm\"\nmemory_gib = 1\n").unwrap();
    let line = ["predict", "--stages", "2", "--batch", "4", "--model", "gpt2", "--hardware", "own.toml", "-q"];
    for base in ["../victim.toml", "..", &served.around.path().join("victim.toml").display().to_string()] {
        for before in ["", "\u{feff}", "# a comment\n"] {
            let (code, said) = served.run(&line, &json!({"own.toml": format!("{before}base = \"{base}\"\n")}));
            assert!(code == 2 && said.contains("expected base to be a name or a dropped file"), "{base}: {said}");
        }
    }
    let both = json!({"own.toml": "base = \"other.toml\"\n", "other.toml": "base = \"h100-sxm\"\n"});
    let (code, said) = served.run(&line, &both);
    assert_eq!(code, 0, "a dropped file may be a base: {said}");
    let (status, why) = served.ask(&["schedules"], &json!({"": "x"}));
    assert!((400..500).contains(&status) && why.contains("expected a name for each file"), "{status} {why}");
    let long = "x".repeat(200_000);
    let (status, why) = served.ask(&["predict", &long], &json!({}));
    assert!((400..500).contains(&status) && why.contains("expected a command line of at most"), "{status} {why}");
    let (code, said) = served.run(&["predict", "a\0b"], &json!({}));
    assert!(code == 2 && said.contains("NUL"), "{code} {said}");
    // what stays inside is run: layers of stages, numbers, a label with a backslash, the folder itself
    for args in [
        vec![
            "plan",
            "--model",
            "gpt2",
            "--hardware",
            "h100-sxm",
            "--gpus",
            "2",
            "--batch",
            "4",
            "--seq",
            "64",
            "--fix",
            "layers=5/7",
        ],
        vec!["predict", "--stages", "2..4*2", "--micro", "4", "--costs", "F=.5,B=1", "-o", "."],
    ] {
        let (code, said) = served.run(&args, &json!({}));
        assert_eq!(code, 0, "{args:?}: {said}");
    }
    let (_, said) = served.run(&["import", ".", "--label", "fwd_(\\d+)=F"], &json!({}));
    assert!(!said.contains("found the path"), "{said}");
}
