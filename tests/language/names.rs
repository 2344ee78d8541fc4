//! Names and texts: deliveries, suggestions for unknown names, quoted text in messages.

use pipesim::internals::nearest::{nearest, same_numbers};
use pipesim::internals::sanitize::sanitize;
use pipesim::schedules::{PyTorch, QueueCount, Receives};
use pipesim::{ChannelOptions, Delivery};

fn channel(queues: QueueCount, receives: Receives) -> Delivery {
    Delivery::Channel(ChannelOptions { queues, receives })
}

#[test]
fn deliveries_are_parsed_as_displayed() {
    for (text, delivery) in [
        ("one-sided", Delivery::OneSided),
        ("buffered(2)", Delivery::Buffered(2)),
        ("channel", channel(QueueCount::One, Receives::JustInTime)),
        ("channel:per-peer", channel(QueueCount::PerPeer, Receives::JustInTime)),
        ("channel:per-direction", channel(QueueCount::PerDirection, Receives::JustInTime)),
        ("channel:front-loaded", channel(QueueCount::One, Receives::FrontLoaded)),
        ("channel:per-peer,front-loaded", channel(QueueCount::PerPeer, Receives::FrontLoaded)),
        ("channel:ahead", channel(QueueCount::One, Receives::Ahead)),
        ("batched", Delivery::Batched),
        ("megatron", Delivery::Megatron),
        ("pytorch", Delivery::PyTorch(PyTorch::Newest)),
        ("pytorch:2.11", Delivery::PyTorch(PyTorch::V2_11)),
        ("pytorch:per-edge", Delivery::PyTorch(PyTorch::PerEdge)),
        ("pytorch:deferred", Delivery::PyTorch(PyTorch::Deferred)),
        ("pytorch:per-edge,deferred", Delivery::PyTorch(PyTorch::PerEdgeDeferred)),
        ("channel:per-peer,deferred", channel(QueueCount::PerPeer, Receives::Deferred)),
    ] {
        assert_eq!(text.parse::<Delivery>().unwrap(), delivery);
        assert_eq!(delivery.to_string(), text);
    }
    assert_eq!("buffered=3".parse::<Delivery>().unwrap(), Delivery::Buffered(3));
    assert_eq!("channel:front-loaded,per-peer".parse(), "channel:per-peer,front-loaded".parse::<Delivery>());
}

#[test]
fn other_deliveries_are_rejected() {
    for text in [
        "",
        "onesided",
        "buffered",
        "buffered()",
        "buffered(0)",
        "buffered=-1",
        "buffered(1",
        "buffered(99999999999)",
        "channel:",
        "channels",
        "channel:per-peer,",
        "channel:per-peer,per-peer",
        "channel:per-peer,per-direction",
        "channel:é",
        "channel:ahead,front-loaded",
        "batched:per-peer",
        "pytorch:2.12",
    ] {
        assert!(text.parse::<Delivery>().is_err(), "{text} must be refused");
    }
}

#[test]
fn names_are_found_by_words_before_letters() {
    let known = ["llama-2-70b", "llama-3-8b", "llama-3-70b", "llama-3.1-70b", "gpt-3-175b", "tiny"];
    for (name, meant) in [
        ("Llama_3_70B", "llama-3-70b"),
        ("llama-3", "llama-3-8b or llama-3-70b or llama-3.1-70b"),
        ("llama-70b", "llama-2-70b or llama-3-70b or llama-3.1-70b"),
        ("Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("lama-3-8b", "llama-3-8b"),
        ("llamma-3-1-70b", "llama-3.1-70b"),
        ("gpt3", "gpt-3-175b"),
        ("tinny", "tiny"),
        ("tiny-stories", ""),
        ("shiny", ""),
        ("qwen", ""),
        ("", ""),
        ("--", ""),
    ] {
        assert_eq!(nearest(name, &known).join(" or "), meant, "{name}");
    }
}

#[test]
fn names_with_other_numbers_differ() {
    assert!(same_numbers("a100", "a100-sxm-80gb") && same_numbers("h100-sxm-96gb", "h100-sxm"));
    assert!(!same_numbers("b100", "b200") && !same_numbers("llama-4-70b", "llama-3-70b"));
}

#[test]
fn quoted_text_is_escaped_and_cut() {
    assert_eq!(sanitize("a\u{1b}[31m\r\u{7}\u{202e}\u{9b}\tb\nµ"), "a\\u{1b}[31m\\r\\u{7}\\u{202e}\\u{9b}\tb\nµ");
    assert_eq!(sanitize(&"x".repeat(100_000)), format!("{} ... and 99000 more characters", "x".repeat(1000)));
    assert!(sanitize(&"y\n".repeat(100_000)).ends_with("y\n... and 99941 more lines"));
    assert_eq!(sanitize(&sanitize("\0")), sanitize("\0"), "twice is once");
}
