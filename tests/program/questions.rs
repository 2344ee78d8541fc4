//! Questions in files: `--save-question` and back.

use crate::cli::{fails, json, pipesim};
use crate::support::{PROGRAM, root};
use pipesim::questions::Question;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn asked(verb: &str, folder: &Path, words: &[String]) -> Output {
    Command::new(PROGRAM).arg(verb).args(words).args(["--format", "json"]).current_dir(folder).output().unwrap()
}

#[test]
fn a_saved_prediction_has_the_same_answer() {
    are_saved_and_asked_again("predict", 100);
}

#[test]
fn a_saved_explanation_has_the_same_answer() {
    are_saved_and_asked_again("explain", 15);
}

#[test]
fn a_saved_plan_has_the_same_answer() {
    are_saved_and_asked_again("plan", 10);
}

/// Random commands that are answered, saved and asked again: the same bytes. `PIPESIM_SAVED_QUESTIONS` is their number.
fn are_saved_and_asked_again(verb: &'static str, usual: usize) {
    let setting = |name: &str, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let number = setting("PIPESIM_SAVED_QUESTIONS", usual);
    let folder = tempfile::tempdir().unwrap();
    let commands = crate::random::commands_of(verb, setting("PIPESIM_RANDOM_SEED", 45) as u64, folder.path());
    let mut answered = 0;
    for words in commands.take(20 * number) {
        let path = folder.path().join("question.toml");
        let _ = fs::remove_file(&path);
        let saving = [&words[..], &["--save-question".to_string(), "question.toml".to_string()]].concat();
        let first = asked(verb, folder.path(), &saving);
        if first.status.code() != Some(0) {
            continue;
        }
        let again = asked(verb, folder.path(), &["question.toml".to_string()]);
        let (text, said) = (fs::read_to_string(&path).unwrap(), String::from_utf8_lossy(&again.stderr).into_owned());
        assert_eq!(again.status.code(), Some(0), "{words:?}\n{text}\n{said}");
        assert!(again.stdout == first.stdout, "{words:?}\n{text}");
        // and by the crate
        assert_eq!(Question::from_toml(&text).unwrap().to_toml().unwrap(), text);
        answered += 1;
        if answered == number {
            return;
        }
    }
    panic!("expected {number} commands with an answer, found {answered}");
}

#[test]
fn options_replace_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.toml");
    fs::write(&path, "version = 1\nschedule = [\"1f1b\", \"gpipe\"]\nstages = 4\nmicro = 8\ncosts = \"F=1,B=2\"\n")
        .unwrap();
    let path = path.display();
    let found = json(&format!("predict {path} -q --format json --micro 16 -s zb-h1"));
    let plain = json("predict --costs F=1,B=2 -q --format json -p 4 -m 16 -s zb-h1");
    assert_eq!(found, plain);
    assert_eq!(
        json(&format!("predict --question {path} -q --format json")),
        json(&format!("predict {path} -q --format json"))
    );
    fails(&format!("predict {path} --model gpt2 --hardware h100-sxm"), 2, &["--costs"]);
}

#[test]
fn a_file_that_is_no_question_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.toml");
    for (text, part) in [
        ("version = 1\nstaegs = 4\n", "did you mean stages?"),
        ("base = \"h100-sxm\"\nmemory_gib = 4\n", "a table of hardware"),
        ("version = 1\nstages = 4\nmicro = \"x\"\n", "line 3"),
        ("version = 1\nstages = 4\nmicro = 0\n", "--micro"),
    ] {
        fs::write(&path, text).unwrap();
        fails(&format!("predict {}", path.display()), 2, &[part]);
    }
    assert_eq!(pipesim("predict none.toml").0, 2);
}

/// A question about one layout is planned and explained as if its settings were given one by one.
#[test]
fn a_question_is_for_all_verbs() {
    let folder = tempfile::tempdir().unwrap();
    let asked = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        let output = asked(&words[0], folder.path(), &words[1..]);
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), said)
    };
    let job = "--model gpt2-large --hardware a100-sxm-80gb --seq 1024 --stack torchtitan --memory-cap 70GiB";
    let layout = "-p 2 --tp 2 --dp 2 -m 16 --micro-batch-size 2 -s gpipe --recompute full";
    assert_eq!(asked(&format!("predict {job} {layout} --save-question job.toml")).0, Some(0));
    // 8 GPUs and 2 x 16 x 2 sequences
    let (code, plans, said) = asked("plan job.toml");
    assert_eq!((code, &plans), (Some(0), &asked(&format!("plan {job} --gpus 8 --batch 64")).1));
    let left = "plan leaves out schedule, stages, micro, tp, dp, micro-batch-size, recompute";
    assert!(said.contains(left), "{said}");
    assert!(asked("plan job.toml -q").2.is_empty());
    let fewer = asked("plan job.toml --gpus 4 --batch 32 --fix tp=2 --top 1 --save-question all.toml").1;
    assert_eq!(fewer, asked(&format!("plan {job} --gpus 4 --batch 32 --fix tp=2 --top 1")).1);
    assert_eq!(fewer, asked("plan all.toml").1);
    assert_eq!(asked("explain job.toml").1, asked(&format!("explain {job} {layout}")).1);
    // a layout is missing, or given
    let (code, _, said) = asked("predict all.toml");
    assert!(code == Some(2) && said.contains("pipesim plan all.toml"), "{said}");
    let layout = layout.replace("-m 16 ", "");
    let (code, found, _) = asked(&format!("predict all.toml {layout}"));
    assert_eq!((code, found), (Some(0), asked(&format!("predict {job} {layout} --batch 32")).1));
    for (verb, option) in [("explain", "--jitter 0.1"), ("plan", "--delivery channel")] {
        let name = option.split(' ').next().unwrap();
        assert_eq!(asked(&format!("predict {job} --batch 32 {layout} {option} --save-question other.toml")).0, Some(0));
        let (code, _, said) = asked(&format!("{verb} other.toml"));
        assert!(code == Some(2) && said.contains(name) && said.contains("leave it out"), "{said}");
    }
}

/// Every key is an option of `predict` or `plan`, and the book describes it.
#[test]
fn every_key_is_an_option_and_described() {
    let options = ["predict", "plan"].map(crate::random::options_of).concat();
    let page = fs::read_to_string(root().join("docs/src/questions.md")).unwrap();
    let all = serde_json::to_value(Question::default()).unwrap();
    for key in all.as_object().unwrap().keys() {
        assert!(page.contains(&format!("| `{key}` |")), "the page has no row of {key}");
        assert!(options.contains(key) || key == "version", "{key} is no option");
    }
}
