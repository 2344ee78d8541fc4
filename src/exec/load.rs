//! What else the machine did meanwhile: other programs, a hypervisor that took cores away, threads of ours that had to make room or
//! waited in a run queue.

use serde::{Deserialize, Serialize};
use std::fs::read_to_string;
use std::ops::Sub;

/// What the system has counted up to a moment, as far as it tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Time that all cores were at work, in the system's ticks.
    busy: u64,
    /// Time that a hypervisor took from them.
    stolen: u64,
    /// All time of all cores.
    all: u64,
    /// Time that this process was at work.
    own: u64,
    /// How often a thread of this process had to make room.
    preempted: u64,
    /// Time that threads of this process stood in a run queue.
    queued_ns: u64,
}

/// What else the machine did during a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Cores that other processes kept busy, on average.
    pub other_cores: f64,
    /// Cores that a hypervisor took, on average.
    pub stolen_cores: f64,
    /// How often a thread of this process had to make room for another.
    pub preempted: u64,
    /// Time that threads of this process, together, were ready and stood in a run queue.
    #[serde(default)]
    pub queued_ns: u64,
}

/// Of a core: more than this is another load. The system counts in ticks of 10 ms, so that less is not seen in a step of 100 ms.
const NOTICED: f64 = 0.15;

impl Load {
    /// Whether it is more than what a quiet machine does of itself.
    pub fn is_noticed(&self) -> bool {
        self.other_cores + self.stolen_cores > NOTICED
    }
}

impl Counters {
    /// Up to now.
    pub fn now() -> Counters {
        let stat = read_to_string("/proc/stat").unwrap_or_default();
        let own = read_to_string("/proc/self/stat").unwrap_or_default();
        let (preempted, queued_ns) = of_threads();
        Counters { preempted, queued_ns, ..Counters::read(&stat, &own) }
    }

    /// What `/proc/stat` and `/proc/self/stat` say.
    fn read(stat: &str, own: &str) -> Counters {
        let cpu = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        let ticks = numbers(cpu.unwrap_or_default());
        let of = |number: usize| ticks.get(number).copied().unwrap_or(0);
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user
        let busy = [0, 1, 2, 5, 6].map(of).iter().sum();
        // after the name in brackets, which may hold anything: state, then numbers; utime and stime are the 14th and 15th field
        let after = own.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = after.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let all = ticks.iter().take(8).sum();
        Counters { busy, stolen: of(7), all, own: field(14) + field(15), ..Counters::default() }
    }

    /// What happened since `earlier`.
    pub fn since(self, earlier: Counters) -> Load {
        let Counters { busy, stolen, all, own, preempted, queued_ns } = self - earlier;
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let in_cores = |ticks: u64| ticks as f64 * cores / all.max(1) as f64;
        let other_cores = in_cores(busy.saturating_sub(own));
        Load { other_cores, stolen_cores: in_cores(stolen), preempted, queued_ns }
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            busy: self.busy.saturating_sub(earlier.busy),
            stolen: self.stolen.saturating_sub(earlier.stolen),
            all: self.all.saturating_sub(earlier.all),
            own: self.own.saturating_sub(earlier.own),
            preempted: self.preempted.saturating_sub(earlier.preempted),
            queued_ns: self.queued_ns.saturating_sub(earlier.queued_ns),
        }
    }
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map_while(|number| number.parse().ok()).collect()
}

/// How often threads of this process had to make room, and how long, in ns, they stood in a run queue.
fn of_threads() -> (u64, u64) {
    let switches = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    // time on a core, time in a run queue, turns
    let queued = |schedstat: String| numbers(&schedstat).get(1).copied();
    let (mut preempted, mut queued_ns) = (0, 0);
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name: &str| read_to_string(thread.path().join(name)).unwrap_or_default();
        preempted += switches(read("status")).unwrap_or(0);
        queued_ns += queued(read("schedstat")).unwrap_or(0);
    }
    (preempted, queued_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_did_is_what_is_left() {
        let before = Counters::read(
            "cpu  100 0 50 800 10 0 5 20 0 0\ncpu0 1 2\n",
            "7 (a ) b) S 1 7 7 0 -1 0 0 0 0 0 60 20 0 0 20 0 4",
        );
        let after =
            Counters::read("cpu  190 0 60 870 10 0 5 50 0 0\n", "7 (a ) b) S 1 7 7 0 -1 0 0 0 0 0 100 30 0 0 20 0 4");
        assert_eq!((before.busy, before.stolen, before.all, before.own), (155, 20, 985, 80));
        // 200 ticks of all cores: 100 busy, of them 50 ours; 30 stolen
        let load = after.since(before);
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        assert!((load.other_cores - 0.25 * cores).abs() < 1e-12 && (load.stolen_cores - 0.15 * cores).abs() < 1e-12);
        assert_eq!(before.since(after), Load::default(), "counters that went backwards say nothing");
        assert_eq!(Counters::read("", ""), Counters::default());
    }

    #[test]
    fn threads_that_share_a_core_wait_for_each_other() {
        if numbers(&read_to_string("/proc/self/schedstat").unwrap_or_default()).len() < 3 {
            return println!("this system does not tell how long threads wait");
        }
        let before = Counters::now();
        let most = 4 * std::thread::available_parallelism().map_or(1, usize::from);
        let begun = std::time::Instant::now();
        let all_wait = std::sync::Barrier::new(most);
        let load = std::thread::scope(|scope| {
            let spin = |_| {
                scope.spawn(|| {
                    while begun.elapsed().as_millis() < 300 {
                        std::hint::spin_loop();
                    }
                    let load = Counters::now().since(before);
                    all_wait.wait();
                    load
                })
            };
            let threads: Vec<_> = (0..most).map(spin).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().queued_ns).max()
        });
        // of 300 ms each thread has a core for a quarter
        assert!(load.unwrap() > 300_000_000, "{load:?}");
    }
}
