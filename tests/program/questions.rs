//! Questions in files: `--save-question` and back.

use crate::cli::{fails, json, pipesim};
use crate::support::{PROGRAM, root};
use pipesim::questions::Question;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn predict(folder: &Path, words: &[String]) -> Output {
    Command::new(PROGRAM).arg("predict").args(words).args(["--format", "json"]).current_dir(folder).output().unwrap()
}

/// Random commands that are answered, saved and asked again: the same bytes.
#[test]
fn a_saved_question_has_the_same_answer() {
    let setting = |name: &str, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let number = setting("PIPESIM_SAVED_QUESTIONS", 200);
    let folder = tempfile::tempdir().unwrap();
    let commands = crate::random::predictions(setting("PIPESIM_RANDOM_SEED", 45) as u64, folder.path());
    let mut answered = 0;
    for words in commands.take(20 * number) {
        let path = folder.path().join("question.toml");
        let _ = fs::remove_file(&path);
        let saving = [&words[..], &["--save-question".to_string(), "question.toml".to_string()]].concat();
        let asked = predict(folder.path(), &saving);
        if asked.status.code() != Some(0) {
            continue;
        }
        let again = predict(folder.path(), &["question.toml".to_string()]);
        let (text, said) = (fs::read_to_string(&path).unwrap(), String::from_utf8_lossy(&again.stderr).into_owned());
        assert_eq!(again.status.code(), Some(0), "{words:?}\n{text}\n{said}");
        assert!(again.stdout == asked.stdout, "{words:?}\n{text}");
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

/// Every key is an option of `predict`, and the book describes it.
#[test]
fn every_key_is_an_option_and_described() {
    let options = crate::random::options_of_predict();
    let page = fs::read_to_string(root().join("docs/src/questions.md")).unwrap();
    let all = serde_json::to_value(Question::default()).unwrap();
    for key in all.as_object().unwrap().keys() {
        assert!(page.contains(&format!("| `{key}` |")), "the page has no row of {key}");
        assert!(options.contains(key) || key == "version", "{key} is no option");
    }
}
