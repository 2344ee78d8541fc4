//! Measured times for other numbers of layers and devices: recut stages, contention, phases of slowness.

use pipesim::CostFile;
use pipesim::costs::{Contention, Slowdown};
use pipesim::internals::cost::{Recut, TYPICAL, even, recut};

#[test]
fn the_same_cut_takes_the_same_time() {
    assert_eq!(recut(&[5, 7, 9], &[2, 3, 4], &[2, 3, 4]), Some(Recut { times: vec![60, 84, 108], scale: 12 }));
    assert_eq!(recut(&[5, 7], &[1, 1], &[1, 2]), None, "another number of layers");
}

#[test]
fn a_moved_layer_takes_its_share_along() {
    // Stage 1 is slow: 20 for two layers, the others 10 for two.
    let cut = recut(&[10, 20, 10, 10], &[2, 2, 2, 2], &[3, 1, 2, 2]).unwrap();
    assert_eq!(cut, Recut { times: vec![40, 20, 20, 20], scale: 2 });
}

#[test]
fn embedding_and_head_stay() {
    // Layers take 5; the head takes 8.
    let cut = recut(&[10, 10, 10, 18], &[2, 2, 2, 2], &[2, 2, 3, 1]).unwrap();
    assert_eq!(cut, Recut { times: vec![20, 20, 30, 26], scale: 2 });
    let [own, new] = even(4, 8);
    let cut = recut(&[10, 10, 10, 18], &own, &new).unwrap();
    assert_eq!(cut, Recut { times: [5, 5, 5, 5, 5, 5, 5, 13].map(|time| 2 * time).to_vec(), scale: 2 });
    let [own, new] = even(4, 2);
    assert_eq!(recut(&[10, 10, 10, 18], &own, &new).unwrap().times, [20, 28]);
    let [own, new] = even(2, 3);
    assert_eq!(recut(&[30, 60], &own, &new).unwrap(), Recut { times: vec![60, 90, 120], scale: 3 });
}

#[test]
fn devices_beyond_those_measured_take_turns() {
    let measured = Contention { cores: 2, per_mille: vec![1000, 1100] };
    assert_eq!(measured.of(4), [1000, 1100, 1650, 2200]);
    assert_eq!(measured.of(1), [1000]);
    let wide = Contention { cores: 8, per_mille: vec![1000, 1100] };
    assert_eq!(wide.of(4), [1000, 1100, 1100, 1100]);
    assert!(measured.matters(2) && !measured.matters(1));
    assert!(!Contention { cores: 2, per_mille: vec![1000, 1000] }.matters(2));
    let mut file = CostFile::from_json(include_str!("../fuzz/seeds/costs/plain.json")).unwrap();
    for (per_mille, is_sound) in
        [(vec![1000, 1100], true), (vec![999], false), (vec![1000, 900], false), (vec![1000, 100_001], false)]
    {
        file.contention = Some(Contention { cores: 2, per_mille });
        let read = CostFile::from_json(&serde_json::to_string(&file).unwrap());
        assert_eq!(read.is_ok(), is_sound, "{:?}", file.contention);
    }
}

#[test]
fn half_speed_doubles_and_the_step_repeats() {
    let speed = Slowdown { devices: vec![vec![(100, TYPICAL), (200, 2 * TYPICAL)]] };
    assert_eq!(speed.stretch(0, 0, 50), 50);
    assert_eq!(speed.stretch(0, 100, 30), 60);
    assert_eq!(speed.stretch(0, 50, 70), 50 + 40);
    assert_eq!(speed.stretch(0, 180, 30), 20 + 20, "wraps into the fast part");
    assert_eq!(speed.stretch(3, 300, 10), 20, "other devices and later times are taken modulo");
    assert_eq!(Slowdown::default().stretch(0, 5, 7), 7);
}
