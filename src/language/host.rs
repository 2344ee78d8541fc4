//! Values and functions of the schedule language in Starlark.

use super::word::{Atom, Named, Offload, Word, WordError};
use allocative::Allocative;
use pipesim_schedule::op::Kind;
use pipesim_schedule::placement::{Placement, PlacementError};
use starlark::any::ProvidesStaticType;
use starlark::environment::GlobalsBuilder;
use starlark::eval::{Arguments, Evaluator};
use starlark::starlark_module;
use starlark::starlark_simple_value;
use starlark::values::list::UnpackList;
use starlark::values::none::{NoneOr, NoneType};
use starlark::values::{Heap, NoSerialize, StarlarkPagable, StarlarkValue, UnpackValue, Value, ValueLike};
use starlark_derive::starlark_value;
use std::cell::Cell;
use std::fmt::{self, Write};

thread_local! {
    /// Line of the statement being evaluated, which operators cannot ask Starlark for.
    pub static LINE: Cell<u32> = const { Cell::new(0) };
}

/// Maximum length of a value in error messages.
const MAX_SHOWN: usize = 300;

/// Maximum length of the name of a phase.
const MAX_NAME: usize = 100;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misuse(String);

pub(super) fn refuse<T>(text: impl fmt::Display) -> starlark::Result<T> {
    Err(starlark::Error::new_other(Misuse(shown(text))))
}

/// Returns the beginning of the text of a value, without printing the rest: nested lists may print forever.
pub(super) fn shown(value: impl fmt::Display) -> String {
    let mut beginning = Beginning::default();
    match write!(beginning, "{value}") {
        Ok(()) => beginning.text,
        Err(_) => beginning.text + " ...",
    }
}

/// Returns the beginning of a value as written in a file.
pub(super) fn quoted(value: Value) -> String {
    match value.unpack_str() {
        Some(text) => format!("{:?}", shown(text)),
        None => shown(value),
    }
}

/// Keeps the first characters of a text, then returns an error.
#[derive(Default)]
struct Beginning {
    text: String,
    length: usize,
}

impl fmt::Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_SHOWN - self.length;
        self.length += text.chars().take(room).count();
        let end = text.char_indices().nth(room).map(|(end, _)| end);
        self.text += &text[..end.unwrap_or(text.len())];
        end.map_or(Ok(()), |_| Err(fmt::Error))
    }
}

fn made(word: Result<Word, WordError>) -> starlark::Result<WordValue> {
    word.map(|word| WordValue { word }).or_else(refuse)
}

/// A word as a Starlark value.
#[derive(Clone, Debug, Allocative, NoSerialize, ProvidesStaticType, StarlarkPagable)]
pub(super) struct WordValue {
    #[allocative(skip)]
    #[starlark_pagable(skip = "Word::empty()")]
    pub word: Word,
}
starlark_simple_value!(WordValue);

impl fmt::Display for WordValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.word.len() {
            Ok(len) => write!(f, "<word of {len} ops>"),
            Err(_) => write!(f, "<word>"),
        }
    }
}

/// `F`, `I`, `W`, `B`, `R`, `O`, `L`, or one of them with a chunk: `F[1]`. Called with a number it names a micro-batch, `B[0](3)`,
/// with two also a slice, `B[0](3, 1)`.
#[derive(Clone, Copy, Debug, Allocative, NoSerialize, ProvidesStaticType, StarlarkPagable)]
pub(super) struct KindValue {
    #[allocative(skip)]
    #[starlark_pagable(skip = "Kind::F")]
    pub kind: Kind,
    pub chunk: u32,
}
starlark_simple_value!(KindValue);

impl fmt::Display for KindValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.kind.letter(), self.chunk)
    }
}

impl KindValue {
    fn word(self, named: Option<Named>) -> Word {
        Word::atom(Atom { kind: self.kind, chunk: self.chunk, named, opens_pair: false, line: LINE.get() })
    }
}

/// A word, or an op as the word of that op.
struct AnyWord(Word);

impl starlark::values::type_repr::StarlarkTypeRepr for AnyWord {
    type Canonical = WordValue;
    fn starlark_type_repr() -> starlark::typing::Ty {
        WordValue::get_type_starlark_repr()
    }
}

impl<'v> UnpackValue<'v> for AnyWord {
    type Error = std::convert::Infallible;
    fn unpack_value_impl(value: Value<'v>) -> Result<Option<Self>, Self::Error> {
        Ok(as_word(value).map(AnyWord))
    }
}

pub fn as_word(value: Value) -> Option<Word> {
    if let Some(value) = value.downcast_ref::<WordValue>() {
        return Some(value.word.clone());
    }
    if let Some(kind) = value.downcast_ref::<KindValue>() {
        return Some(kind.word(None));
    }
    None
}

fn add<'v>(a: Word, b: Value<'v>, heap: Heap<'v>) -> Option<starlark::Result<Value<'v>>> {
    as_word(b).map(|b| made(a.then(&b)).map(|word| heap.alloc(word)))
}

fn times<'v>(word: &Word, count: Value<'v>, heap: Heap<'v>) -> Option<starlark::Result<Value<'v>>> {
    i64::unpack_value(count).ok().flatten().map(|count| Ok(heap.alloc(made(word.times(count))?)))
}

#[starlark_value(type = "word")]
impl<'v> StarlarkValue<'v> for WordValue {
    fn add(&self, other: Value<'v>, heap: Heap<'v>) -> Option<starlark::Result<Value<'v>>> {
        add(self.word.clone(), other, heap)
    }

    fn mul(&self, other: Value<'v>, heap: Heap<'v>) -> Option<starlark::Result<Value<'v>>> {
        times(&self.word, other, heap)
    }

    fn rmul(&self, other: Value<'v>, heap: Heap<'v>) -> Option<starlark::Result<Value<'v>>> {
        times(&self.word, other, heap)
    }

    fn length(&self) -> starlark::Result<i32> {
        let len = self.word.len().or_else(refuse)?;
        i32::try_from(len).or_else(|_| refuse(format!("the word's length {len} is beyond {}", i32::MAX)))
    }

    fn slice(
        &self,
        start: Option<Value<'v>>,
        stop: Option<Value<'v>>,
        stride: Option<Value<'v>>,
        heap: Heap<'v>,
    ) -> starlark::Result<Value<'v>> {
        if stride.is_some() {
            return refuse("a word is sliced as word[from:to], without a stride");
        }
        let len = self.word.len().or_else(refuse)? as i64;
        let bound = |value: Option<Value<'v>>, default: i64| -> starlark::Result<u64> {
            let given = match value {
                Some(value) if !value.is_none() => i64::unpack_value(value)?,
                _ => Some(default),
            };
            match given {
                Some(n) => Ok(if n < 0 { (len + n).max(0) } else { n.min(len) } as u64),
                None => refuse("expected whole numbers in word[from:to]"),
            }
        };
        let range = bound(start, 0)?..bound(stop, len)?;
        Ok(heap.alloc(made(self.word.slice(range))?))
    }
}

#[starlark_value(type = "op")]
impl<'v> StarlarkValue<'v> for KindValue {
    fn add(&self, other: Value<'v>, heap: Heap<'v>) -> Option<starlark::Result<Value<'v>>> {
        add(self.word(None), other, heap)
    }

    fn mul(&self, other: Value<'v>, heap: Heap<'v>) -> Option<starlark::Result<Value<'v>>> {
        times(&self.word(None), other, heap)
    }

    fn rmul(&self, other: Value<'v>, heap: Heap<'v>) -> Option<starlark::Result<Value<'v>>> {
        times(&self.word(None), other, heap)
    }

    fn at(&self, index: Value<'v>, heap: Heap<'v>) -> starlark::Result<Value<'v>> {
        match u32::unpack_value(index)? {
            Some(chunk) => Ok(heap.alloc(KindValue { chunk, ..*self })),
            None => refuse(format!("expected a chunk number, as in {}[1], found {index}", self.kind.letter())),
        }
    }

    fn invoke(
        &self,
        _me: Value<'v>,
        args: &Arguments<'v, '_>,
        eval: &mut Evaluator<'v, '_, '_>,
    ) -> starlark::Result<Value<'v>> {
        args.no_named_args()?;
        let (value, slice) = match args.len()? {
            2 => args.positional(eval.heap()).map(|[value, slice]| (value, Some(slice)))?,
            _ => args.positional(eval.heap()).map(|[value]| (value, None))?,
        };
        let slice = match slice {
            None => None,
            Some(given) => match u32::unpack_value(given)? {
                None => return refuse(format!("expected a slice number, as in {self}(3, 1), found {given}")),
                found => found,
            },
        };
        match u32::unpack_value(value)? {
            Some(microbatch) => Ok(eval.heap().alloc(WordValue { word: self.word(Some(Named { microbatch, slice })) })),
            None => refuse(format!("expected a micro-batch number, as in {self}(3), found {value}")),
        }
    }
}

/// A placement before the numbers of devices and chunks are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlacementRule {
    /// One stage per device.
    Linear,
    /// Stage s on device s mod p.
    Loop,
    /// Stages r and 2p - 1 - r on device r.
    V,
    /// Down the devices and up again, once per chunk.
    Zigzag,
    /// Half the micro-batches run down the devices, half up: two copies of each stage.
    Bidirectional,
    /// The device of each stage.
    Custom(Vec<u32>),
}

impl PlacementRule {
    /// Returns the number of chunks if the placement fixes it.
    pub fn chunks(&self, devices: u32) -> Option<u32> {
        match self {
            PlacementRule::Linear => Some(1),
            PlacementRule::V => Some(2),
            PlacementRule::Custom(list) => u32::try_from(list.len()).ok()?.checked_div(devices).map(|v| v.max(1)),
            PlacementRule::Loop | PlacementRule::Zigzag | PlacementRule::Bidirectional => None,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            PlacementRule::Linear => "linear",
            PlacementRule::Loop => "loop",
            PlacementRule::V => "V",
            PlacementRule::Zigzag => "zigzag",
            PlacementRule::Bidirectional => "bidirectional",
            PlacementRule::Custom(_) => "custom",
        }
    }

    pub fn placement(&self, devices: u32, chunks: u32) -> Result<Placement, PlacementError> {
        Ok(match self {
            PlacementRule::Linear => Placement::linear(devices),
            PlacementRule::Loop => Placement::looped("loop", devices, chunks),
            PlacementRule::V => Placement::zigzag("V", devices, 2),
            PlacementRule::Zigzag => Placement::zigzag("zigzag", devices, chunks),
            PlacementRule::Bidirectional => return Placement::bidirectional(devices, chunks),
            PlacementRule::Custom(list) => return Placement::new("custom", devices, list.clone()),
        })
    }
}

/// A placement as a Starlark value: `linear`, `loop`, `v_shape`, `zigzag`, `bidirectional` or `custom([...])`. Called with a
/// number it fixes the chunks: `zigzag(4)`.
#[derive(Clone, Debug, Allocative, NoSerialize, ProvidesStaticType, StarlarkPagable)]
pub(super) struct LayoutValue {
    #[allocative(skip)]
    #[starlark_pagable(skip = "PlacementRule::Linear")]
    pub layout: PlacementRule,
    /// Chunks per device, if the schedule fixes them.
    pub chunks: Option<u32>,
}
starlark_simple_value!(LayoutValue);

impl fmt::Display for LayoutValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<placement {}>", self.layout.name())
    }
}

#[starlark_value(type = "placement")]
impl<'v> StarlarkValue<'v> for LayoutValue {
    fn invoke(
        &self,
        _me: Value<'v>,
        args: &Arguments<'v, '_>,
        eval: &mut Evaluator<'v, '_, '_>,
    ) -> starlark::Result<Value<'v>> {
        args.no_named_args()?;
        let [value] = args.positional(eval.heap())?;
        match (u32::unpack_value(value)?.filter(|&chunks| chunks > 0), &self.layout) {
            (Some(chunks), PlacementRule::Loop | PlacementRule::Zigzag | PlacementRule::Bidirectional) => {
                Ok(eval.heap().alloc(LayoutValue { layout: self.layout.clone(), chunks: Some(chunks) }))
            }
            (Some(_), _) => refuse(format!("{self} has a fixed number of chunks")),
            (None, _) => refuse(format!("expected a number of chunks, 1 or more, as in zigzag(4), found {value}")),
        }
    }
}

/// Returns the chunk numbers of a list or a range.
fn chunk_list<'v>(chunks: Value<'v>, heap: Heap<'v>) -> starlark::Result<Vec<u32>> {
    let number = |value: Value<'v>| match u32::unpack_value(value)? {
        Some(chunk) => Ok(chunk),
        None => refuse(format!("expected chunk numbers, as in chunks = [0, 1], found {value}")),
    };
    chunks.iterate(heap)?.map(number).collect()
}

#[starlark_module]
pub fn functions(builder: &mut GlobalsBuilder) {
    /// The words of a list, one after the other.
    fn concat(#[starlark(require = pos)] words: UnpackList<AnyWord>) -> starlark::Result<WordValue> {
        made(Word::concat(words.items.into_iter().map(|word| word.0).collect()))
    }

    /// Ops of two words alternating, then the rest of the longer.
    fn alternate(
        #[starlark(require = pos)] a: AnyWord,
        #[starlark(require = pos)] b: AnyWord,
    ) -> starlark::Result<WordValue> {
        made(Word::alternate(&a.0, &b.0))
    }

    /// A forward and a backward of different micro-batches that run as one op.
    fn overlap(
        #[starlark(require = pos)] first: AnyWord,
        #[starlark(require = pos)] second: AnyWord,
    ) -> starlark::Result<WordValue> {
        made(Word::overlap(&first.0, &second.0))
    }

    /// The word without the ops of micro-batches m and above, which are still numbered.
    fn first(
        #[starlark(require = pos)] m: u32,
        #[starlark(require = pos)] word: AnyWord,
    ) -> starlark::Result<WordValue> {
        made(word.0.first(m))
    }

    /// The word with R, which computes the forward again, directly before each backward of `chunks`, or of all.
    fn recompute<'v>(
        #[starlark(require = pos)] word: AnyWord,
        #[starlark(default = NoneOr::None)] chunks: NoneOr<Value<'v>>,
        heap: Heap<'v>,
    ) -> starlark::Result<WordValue> {
        let chunks = chunks.into_option().map(|chunks| chunk_list(chunks, heap)).transpose()?;
        made(word.0.recompute(chunks))
    }

    /// The word with O, which copies an activation to the host, after each F of `chunks`, or of all, and L, which brings it back, `ahead`
    /// compute ops before its backward; only where `least` compute ops or more lie from F to L.
    fn offload<'v>(
        #[starlark(require = pos)] word: AnyWord,
        #[starlark(default = NoneOr::None)] chunks: NoneOr<Value<'v>>,
        #[starlark(default = 2)] ahead: u32,
        #[starlark(default = 4)] least: u32,
        heap: Heap<'v>,
    ) -> starlark::Result<WordValue> {
        let chunks = chunks.into_option().map(|chunks| chunk_list(chunks, heap)).transpose()?;
        made(word.0.offload(Offload { chunks, ahead, least }))
    }

    /// The word with a name that timelines show.
    fn phase(
        #[starlark(require = pos)] name: &str,
        #[starlark(require = pos)] word: AnyWord,
    ) -> starlark::Result<WordValue> {
        if name.chars().count() > MAX_NAME || name.chars().any(char::is_control) {
            return refuse(format!(
                "expected phase(name, word) with a name of at most {MAX_NAME} characters on one line, found {name:?}"
            ));
        }
        made(word.0.phase(name))
    }

    /// Rejects the schedule with a reason unless the condition holds.
    fn require(
        #[starlark(require = pos)] condition: bool,
        #[starlark(require = pos)] reason: &str,
    ) -> starlark::Result<NoneType> {
        if condition { Ok(NoneType) } else { Err(starlark::Error::new_other(Refusal(reason.to_string()))) }
    }

    /// A placement that lists the device of each stage.
    fn custom(#[starlark(require = pos)] devices: UnpackList<u32>) -> starlark::Result<LayoutValue> {
        Ok(LayoutValue { layout: PlacementRule::Custom(devices.items), chunks: None })
    }
}

/// The reason a schedule gives for rejecting these numbers.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);
