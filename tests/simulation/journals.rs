//! A search that goes on from the journal of another question finds what a fresh one finds, or refuses the journal.

use crate::support::Dice;
use pipesim::Precision;
use pipesim::costs::Platform;
use pipesim::models::Attention;
use pipesim::models::{hardware, stack, transformer_named};
use pipesim::plans::{Fixed, Journal, LayoutOutcome, Objective, Observer, Plans, Question, Silent, plan};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Mutex;

/// Keeps the lines of a journal.
#[derive(Default)]
struct Kept(Mutex<String>);

impl Observer for Kept {
    fn outcome(&self, number: u32, outcome: LayoutOutcome) {
        *self.0.lock().unwrap() += &format!("{}\n", Journal::line(number, outcome));
    }
}

/// Orders of two devices and four micro-batches that hold the same ops.
const STARS: [&str; 3] = ["m * F + m * B", "m * (F + B)", "m * F + m * I + m * W"];
const TABLES: [&str; 2] = [
    "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n",
    "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n",
];

/// Writes other texts into the two schedule files.
fn write(folder: &Path, dice: &mut Dice) {
    let star = STARS[dice.below(STARS.len())];
    fs::write(folder.join("mine.star"), format!("def device(r, p, m):\n    return {star}\n")).unwrap();
    fs::write(folder.join("mine.csv"), TABLES[dice.below(TABLES.len())]).unwrap();
}

/// A change of one thing that an answer depends on; the last two change none.
const CHANGES: usize = 17;

fn change(question: &mut Question, which: usize, folder: &Path, dice: &mut Dice) {
    let path = |name: &str| folder.join(name).display().to_string();
    let Question { model, machine, .. } = question;
    match which {
        0 => write(folder, dice),
        1 => question.schedules = vec![path("mine.star")],
        2 => question.schedules = vec![path("mine.csv"), "gpipe".to_string()],
        3 => question.schedules = Vec::new(),
        4 => model.layers = [4, 6, 8][dice.below(3)],
        5 => model.mlp = [1024, 3072][dice.below(2)],
        6 => machine.hardware.bf16_tflops *= [0.5, 0.9][dice.below(2)],
        7 => machine.hardware.network_gbps_per_gpu *= 0.25,
        8 => machine.stack = stack(["megatron-core", "torchtitan", "megatron-zb"][dice.below(3)]).unwrap(),
        9 => question.gpus = [vec![2], vec![4], vec![2, 4]][dice.below(3)].clone(),
        10 => question.batch = [4, 8][dice.below(2)],
        11 => question.sequence = [128, 256][dice.below(2)],
        12 => question.precision = [Precision::Bf16, Precision::Fp32][dice.below(2)],
        13 => question.attention = [None, Some(Attention::Plain)][dice.below(2)],
        14 => question.fixed = Fixed::parse(["pp=2,cp=1", "pp=2,micro-batch-size=1", "tp=1"][dice.below(3)]).unwrap(),
        15 => question.memory_limit = [None, Some(2 << 30), Some(1 << 30)][dice.below(3)],
        16 => question.objective = [Objective::Time, Objective::TokensPerGpu][dice.below(2)],
        17 => question.keep = 1 + dice.below(6),
        _ => {}
    }
}

/// Everything that an answer says.
fn said(plans: &Result<Plans, pipesim::plans::PlanError>) -> String {
    format!("{plans:?}")
}

#[test]
fn a_journal_serves_its_own_question_alone() {
    let (mut refused, mut taken, mut different) = (BTreeSet::new(), 0, 0);
    for seed in 0..240 {
        let dice = &mut Dice(seed);
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), dice);
        let machine = Platform { hardware: hardware("a100-sxm-80gb").unwrap(), stack: stack("megatron-core").unwrap() };
        let mut first = Question::new(transformer_named("gpt2").unwrap(), machine, 2, 8, 128);
        first.model.layers = 4;
        first.fixed = Fixed::parse("pp=2,cp=1").unwrap();
        for which in [1 + dice.below(3), dice.below(CHANGES + 2)] {
            change(&mut first, which, folder.path(), dice);
        }
        let kept = Kept::default();
        let head = Journal::head(&first);
        let before = said(&plan(&first, BTreeMap::new(), &kept));
        let text = head + "\n" + &kept.0.into_inner().unwrap();
        let mut second = first.clone();
        let which = seed as usize % (CHANGES + 2);
        change(&mut second, which, folder.path(), dice);
        let fresh = said(&plan(&second, BTreeMap::new(), &Silent));
        match Journal::read(&second, &text) {
            Err(error) => {
                assert!(error.to_string().contains("expected the journal of this question"), "{error}");
                refused.insert(which);
            }
            Ok(journal) => {
                taken += 1;
                let resumed = said(&plan(&second, journal.outcomes, &Silent));
                assert_eq!(resumed, fresh, "seed {seed}: change {which}");
            }
        }
        different += usize::from(before != fresh);
    }
    assert!(refused.iter().copied().eq(0..CHANGES), "refused after changes {refused:?}");
    assert!(taken > 40 && different > 60, "{taken} journals were taken, {different} answers differed");
}
