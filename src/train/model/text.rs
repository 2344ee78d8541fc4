//! A made-up text to train on when there is no other: short stories from a small grammar, the same every time.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const END_OF_TEXT: u32 = 256;
const LENGTH: usize = 300_000;

const NAMES: &[&str] =
    &["Ada", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Nora", "Tom"];
const ADJECTIVES: &[&str] =
    &["old", "small", "red", "quiet", "bright", "heavy", "broken", "new", "tall", "golden", "cold"];
const NOUNS: &[&str] = &[
    "boat", "house", "garden", "river", "bridge", "lamp", "book", "tree", "dog", "cat", "horse", "bell", "window",
    "door", "road", "hill", "letter", "clock", "stone", "basket",
];
const PLACES: &[&str] =
    &["by the river", "in the garden", "on the hill", "near the bridge", "in the village", "at home"];
const TRANSITIVE: &[&str] =
    &["found", "saw", "painted", "carried", "repaired", "remembered", "watched", "lost", "kept"];
const INTRANSITIVE: &[&str] = &["slept", "waited", "laughed", "sang", "walked", "listened", "worked", "rested"];
const TIMES: &[&str] =
    &["In the morning", "After lunch", "That night", "Every summer", "The next day", "Before winter"];
const SAID: &[&str] = &["said", "asked", "whispered", "answered"];
const FEELINGS: &[&str] = &["happy", "tired", "hungry", "proud", "curious", "afraid", "calm"];

/// The stories' bytes, an end-of-text token before each.
pub(super) fn stories() -> Vec<u32> {
    let mut writer = TextGenerator { generator: ChaCha8Rng::seed_from_u64(20), text: String::new() };
    let mut ids = Vec::with_capacity(LENGTH + 2000);
    while ids.len() < LENGTH {
        writer.text.clear();
        writer.story();
        ids.push(END_OF_TEXT);
        ids.extend(writer.text.bytes().map(u32::from));
    }
    ids
}

struct TextGenerator {
    generator: ChaCha8Rng,
    text: String,
}

impl TextGenerator {
    fn below(&mut self, bound: usize) -> usize {
        self.generator.next_u32() as usize % bound
    }

    fn choose(&mut self, words: &'static [&'static str]) -> &'static str {
        words[self.below(words.len())]
    }

    fn say(&mut self, words: &[&str]) {
        words.iter().for_each(|word| self.text.push_str(word));
    }

    fn story(&mut self) {
        let hero = self.below(NAMES.len());
        let friend = (hero + 1 + self.below(NAMES.len() - 1)) % NAMES.len();
        let (hero, friend) = (NAMES[hero], NAMES[friend]);
        for _ in 0..2 + self.below(3) {
            for _ in 0..3 + self.below(4) {
                let name = if self.below(3) == 0 { friend } else { hero };
                self.sentence(name, if name == hero { friend } else { hero });
                self.say(&[" "]);
            }
            self.text.pop();
            self.say(&["\n\n"]);
        }
    }

    fn sentence(&mut self, name: &str, other: &str) {
        match self.below(6) {
            0 => {
                let (time, verb, place) = (self.choose(TIMES), self.choose(INTRANSITIVE), self.choose(PLACES));
                self.say(&[time, ", ", name, " ", verb, " ", place, "."]);
            }
            1 => {
                let (verb, feeling) = (self.choose(SAID), self.choose(FEELINGS));
                self.say(&["\"I am ", feeling, ",\" ", verb, " ", name, "."]);
            }
            2 => {
                let (feeling, verb) = (self.choose(FEELINGS), self.choose(INTRANSITIVE));
                self.say(&[name, " was ", feeling, ", so ", other, " ", verb, " and waited."]);
            }
            3 => {
                let verb = self.choose(TRANSITIVE);
                self.say(&[name, " and ", other, " ", verb, " "]);
                self.thing();
                self.say(&["."]);
            }
            _ => {
                let (verb, place) = (self.choose(TRANSITIVE), self.choose(PLACES));
                self.say(&[name, " ", verb, " "]);
                self.thing();
                self.say(&[" ", place, "."]);
            }
        }
    }

    fn thing(&mut self) {
        let (adjective, noun) = (self.choose(ADJECTIVES), self.choose(NOUNS));
        let article = match self.below(2) {
            0 => "the ",
            _ if adjective.starts_with(['a', 'e', 'i', 'o', 'u']) => "an ",
            _ => "a ",
        };
        self.say(&[article, adjective, " ", noun]);
    }
}
