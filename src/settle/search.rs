//! Search (experiment).
use super::Goal;
use super::dispatch::{Course, Rank, Rule, dispatch};
use super::polish::{Mode, Polish, Random, order};
use super::problem::Problem;
use super::trial::{Score, Trial, Words};
use crate::op::{Kind, Op};

pub struct Outcome { pub makespan: u64, pub span: u64, pub first: (u64,u64), pub tried: usize, pub work: u64 }

fn mean(problem: &Problem, kind: Kind) -> i64 {
    let s: Vec<u64> = problem.placement.op_kinds().filter(|op| op.kind()==kind).map(|op| problem.rules[op.slot()].hold).collect();
    (s.iter().sum::<u64>() / s.len() as u64) as i64
}

/// Offsets of a pattern: per chunk, extra delay per hop of the F wave and the backward wave in units of `unit`, turn delay.
pub(super) fn offsets(problem: &Problem, split: bool, extra: impl Fn(u32, bool) -> i64, turn: i64) -> Vec<i64> {
    let stages = problem.placement.stages();
    let mut off = vec![0i64; problem.rules.len()];
    let back = if split { Kind::I } else { Kind::B };
    for d in 0..problem.placement.directions() {
        let mut t = 0i64;
        for s in 0..stages {
            let op = Op::new(Kind::F, s, 0).in_direction(d);
            off[op.slot()] = t;
            let r = problem.rules[op.slot()];
            t += (r.duration + r.lag) as i64;
            if r.lag > 0 || r.consumer != problem.placement.device_of(op) { t += extra(s / problem.placement.devices(), true); }
        }
        t += turn;
        for s in (0..stages).rev() {
            let op = Op::new(back, s, 0).in_direction(d);
            off[op.slot()] = t;
            let r = problem.rules[op.slot()];
            t += (r.duration + r.lag) as i64;
            if r.lag > 0 || r.consumer != problem.placement.device_of(op) { t += extra(s / problem.placement.devices(), false); }
        }
    }
    off
}

pub(super) fn words_of(problem: &Problem, out: &[Vec<Op>], weights: bool) -> Words {
    let _ = problem;
    let w: Vec<Vec<u32>> = out.iter().map(|ops| ops.iter().filter(|op| weights || op.kind()!=Kind::W).map(|op| op.slot() as u32).collect()).collect();
    Words::new(&w)
}

pub fn strict(problem: &Problem, split: bool, off: &[i64], period: i64) -> Words {
    let back = if split { Kind::I } else { Kind::B };
    let mut words = Vec::new();
    for d in 0..problem.devices() {
        let mut ops: Vec<(i64, u32)> = Vec::new();
        for c in problem.placement.held_by(d as u32) {
            for kind in [Kind::F, back] {
                let slot = Op::new(kind, c.stage, 0).in_direction(c.direction).slot();
                for j in 0..problem.share(c.direction) { ops.push((off[slot] + period * j as i64, slot as u32)); }
            }
        }
        ops.sort();
        words.push(ops.into_iter().map(|x| x.1).collect());
    }
    Words::new(&words)
}

pub fn experiment(problem: &Problem, goal: Goal, split: bool, trials: u64, keep: usize, heat: f64, verbose: bool) -> Outcome {
    let mut trial = Trial::new(problem);
    let (f, i, w, b) = (mean(problem, Kind::F), mean(problem, Kind::I), mean(problem, Kind::W), mean(problem, Kind::B));
    let unit = if split { (f + i + w) / 3 } else { (f + b) / 3 };
    let period = problem.span_bound(split) as i64 / problem.microbatches as i64;
    let mut found: Vec<((u64,u64,u64), Words, Score, u64, String)> = Vec::new();
    let mut tried = 0;
    let mut consider = |trial: &mut Trial, words: Words, what: String, found: &mut Vec<_>| {
        let mut best: Option<(Score, u64)> = None;
        for slack in if split { vec![0, w as u64 / 3, 2 * w as u64 / 3, w as u64] } else { vec![0] } {
            tried += 1;
            if let Some(score) = trial.fill(&words, slack, |_, _| ()) && best.is_none_or(|b| order(goal, score) < order(goal, b.0)) { best = Some((score, slack)); }
        }
        if let Some((score, slack)) = best { found.push((order(goal, score), words, score, slack, what)); }
    };
    let extras: Vec<[i64; 4]> = if problem.placement.chunks() == 1 { 
        (0..8).map(|k| [0, 0, k, k]).chain([[1,1,1,1],[1,1,0,0]]).collect()
    } else {
        let mut e = Vec::new();
        for a in 0..4 { for bb in 0..3 { for (c, d) in [(a,bb),(a,a),(bb,a),(0,0)] { e.push([a,bb,c,d]); } } }
        e.sort(); e.dedup(); e
    };
    for e in extras {
        for turn in 0..3 {
            let off = offsets(problem, split, |c, fwd| e[(c.min(1) + if fwd {0} else {2}) as usize] * unit, turn * unit);
            let ws = strict(problem, split, &off, period);
            consider(&mut trial, ws, format!("strict {e:?} {turn}"), &mut found);
            for patience in [0, unit / 2] { for slack in [0, w] {
                let rule = Rule { rank: Rank::Times { offsets: off.clone(), period }, split, compete: false, slack: slack as u64, patience: patience as u64, depth: None };
                let courses: Vec<Course> = (0..problem.devices()).map(|_| Course::Choose(&rule)).collect();
                match dispatch(problem, &courses) {
                    Ok(out) => consider(&mut trial, words_of(problem, &out, false), format!("greedy {e:?} {turn} pat {patience} slack {slack}"), &mut found),
                    Err(s) => if verbose { println!("stuck {:?}", s) },
                }
            } }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found.dedup_by(|a, b| a.1 == b.1);
    if verbose { for x in found.iter().take(4) { println!("   cand {:?} slack {} {}", x.2, x.3, x.4); } }
    let first = (found[0].2.makespan, found[0].2.span);
    let bound = match goal { Goal::Makespan => problem.makespan_bound(split), Goal::Span => problem.span_bound(split) };
    let mut best = found[0].2;
    for (n, x) in found.iter().take(keep).enumerate() {
        let mut polish = Polish { problem, trial: &mut trial, goal, mode: Mode::Fill(x.3), random: Random(n as u64), bound, heat: (heat * 8.0 * unit as f64) as u64 };
        if let Some((_, s)) = polish.run(x.1.clone(), trials) {
            if verbose { println!("   polished {n} {:?} -> {:?}", x.2, s); }
            if order(goal, s) < order(goal, best) { best = s; }
        }
    }
    Outcome { makespan: best.makespan, span: best.span, first, tried, work: trial.work }
}
