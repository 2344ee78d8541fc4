//! The protocols on shared memory, under many interleavings of their operations.

use pipesim_interleavings::compute::Collective;
use pipesim_interleavings::exec::collective::TensorGroup;
use pipesim_interleavings::exec::shared::Shared;
use pipesim_interleavings::exec::signal::Signal;
use pipesim_interleavings::sync::thread::spawn;
use std::sync::Arc;

/// Runs `scenario` under this many interleavings: at random, and with few preemptions at any place (Burckhardt et al., "A randomized
/// scheduler with probabilistic guarantees of finding bugs", 2010). A thread that waits for ever is an error.
#[cfg(not(feature = "threads"))]
fn check(interleavings: usize, scenario: impl Fn() + Send + Sync + Clone + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    let config = || {
        let mut config = shuttle::Config::new();
        config.stack_size = 1 << 19;
        config.failure_persistence = shuttle::FailurePersistence::None;
        config
    };
    let half = interleavings / 2;
    shuttle::Runner::new(RandomScheduler::new_from_seed(42, half), config()).run(scenario.clone());
    shuttle::Runner::new(PctScheduler::new_from_seed(42, 3, half), config()).run(scenario);
}

/// Runs `scenario` on the system's threads over and over.
#[cfg(feature = "threads")]
fn check(interleavings: usize, scenario: impl Fn() + Send + Sync + Clone + 'static) {
    (0..interleavings / 20).for_each(|_| scenario());
}

/// Runs `body` as each of `workers` workers of a group, on one machine or `apart`.
fn group(workers: u32, apart: bool, body: impl Fn(u32, &Arc<Shared>) + Send + Sync + Clone + 'static) {
    let (ranks, shared) = Shared::all(workers, apart);
    let run = |worker: u32| {
        let (body, shared) = (body.clone(), shared[worker as usize].clone());
        spawn(move || body(worker, &shared))
    };
    let threads: Vec<_> = (0..workers).map(run).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    ranks.iter().for_each(|rank| rank.end());
}

/// A number of worker `worker` in call `call`.
fn number(worker: u32, call: u32) -> f32 {
    (1 + worker * 10 + call * 100) as f32
}

#[test]
fn whoever_waits_for_a_signal_is_woken() {
    check(4000, || {
        group(3, false, |worker, shared| {
            let signal: &Signal = shared.heap().signal(shared.channel().arrived);
            if worker == 0 {
                (1..=2).for_each(|value| signal.raise(value));
            } else {
                (1..=2).for_each(|value| signal.wait(value, shared.watch()).unwrap());
                assert_eq!(signal.value(), 2);
            }
        });
    });
}

/// Every member gets the same sums, in consecutive calls that use both slots again.
#[test]
fn collective_calls_give_every_member_all_parts() {
    for (workers, apart) in [(2, false), (3, false), (2, true), (3, true)] {
        check(600, move || {
            group(workers, apart, move |worker, shared| {
                let mut member = TensorGroup::new(worker, shared);
                let of_all = |call: u32| (0..workers).map(|worker| number(worker, call)).sum::<f32>();
                for call in 0..3 {
                    let mut data = [number(worker, call), 1.0];
                    member.all_reduce(&mut data).unwrap();
                    assert_eq!(data, [of_all(call), workers as f32], "call {call}");
                }
                let parts: Vec<f32> = (0..workers).map(|part| number(worker, part)).collect();
                let mut share = [0.0];
                member.reduce_scatter(&parts, &mut share).unwrap();
                assert_eq!(share, [of_all(worker)]);
                let mut gathered = vec![0.0; workers as usize];
                member.all_gather(&share, &mut gathered).unwrap();
                assert_eq!(gathered, (0..workers).map(of_all).collect::<Vec<f32>>());
            });
        });
    }
}

#[test]
fn barriers_hold_and_norms_are_those_of_their_step() {
    for apart in [false, true] {
        check(600, move || {
            group(3, apart, |worker, shared| {
                let (heap, watch, reductions) = (shared.heap(), shared.watch(), shared.reductions());
                for step in 0..3 {
                    reductions.meet(heap, worker, step, watch).unwrap();
                    let own = f64::from(number(worker, step as u32));
                    reductions.put_norms(heap, worker, step, &[(worker as usize, own)]);
                    let sum = reductions.sum_norms(heap, step, watch).unwrap();
                    assert_eq!(sum, (0..3).map(|worker| f64::from(number(worker, step as u32))).sum::<f64>());
                }
            });
        });
    }
}

/// Passes four messages through one buffer. Without `credit` the producer does not wait until the last one was read.
fn pass(apart: bool, credit: bool) {
    group(2, apart, move |worker, shared| {
        let (channel, heap, watch) = (shared.channel(), shared.heap(), shared.watch());
        for message in 1..=4_u64 {
            if worker == 0 {
                if credit {
                    heap.signal(channel.read).wait(message - 1, watch).unwrap();
                }
                channel.put(heap, 1, &[message as f32; 3], message);
            } else {
                heap.signal(channel.arrived).wait(message, watch).unwrap();
                channel.take(heap, |data| assert_eq!(data, [message as f32; 3]));
                heap.raise(0, channel.read, message);
            }
        }
    });
}

#[test]
fn messages_are_read_before_they_are_overwritten() {
    for apart in [false, true] {
        check(2000, move || pass(apart, true));
    }
}

/// The checker finds what is wrong: a message that is overwritten, and a wake-up that is lost.
#[cfg(not(feature = "threads"))]
mod broken {
    use super::*;
    use pipesim_interleavings::exec::atomic::{AtomicU32, AtomicU64, Ordering, WAKES_BY_ITSELF, park, wake_all};
    use std::panic::catch_unwind;

    /// Whether `scenario` fails under some interleaving.
    fn is_found(
        scenario: impl Fn() + Send + Sync + Clone + std::panic::RefUnwindSafe + std::panic::UnwindSafe + 'static,
    ) -> bool {
        catch_unwind(|| check(2000, scenario)).is_err()
    }

    #[test]
    fn a_put_without_credit_overwrites_a_message() {
        assert!(is_found(|| pass(false, false)));
        assert!(is_found(|| pass(true, false)));
    }

    /// A signal whose waiter looks at the value before it reads the bell, so that a raise in between goes by.
    #[test]
    fn a_bell_that_is_read_too_late_loses_a_wake_up() {
        assert!(is_found(|| {
            let signal = Arc::new((AtomicU64::default(), AtomicU32::default()));
            let raiser = signal.clone();
            let thread = spawn(move || {
                raiser.0.fetch_max(1, Ordering::SeqCst);
                raiser.1.fetch_add(1, Ordering::SeqCst);
                wake_all(&raiser.1);
            });
            while signal.0.load(Ordering::SeqCst) < 1 {
                let bell = signal.1.load(Ordering::SeqCst);
                park(&signal.1, bell);
            }
            thread.join().unwrap();
        }));
    }

    /// A member that never takes part: the others wait until the run is aborted, and then do not go on with half of the data.
    #[test]
    fn members_of_a_call_that_is_aborted_get_an_error() {
        WAKES_BY_ITSELF.set(true);
        for apart in [false, true] {
            check(400, move || {
                group(3, apart, |worker, shared| match worker {
                    0 => shared.watch().abort(),
                    _ => {
                        let mut member = TensorGroup::new(worker, shared);
                        assert!(member.all_reduce(&mut [1.0]).is_err());
                    }
                });
            });
        }
        WAKES_BY_ITSELF.set(false);
    }
}
