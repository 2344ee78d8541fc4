//! Hints to fetch what is needed soon. Weights and their gradients are used once per pass, so they come from memory, in strips
//! that no processor foresees.

/// Elements of a cache line.
pub(crate) const LINE: usize = 16;

/// Asks for the cache lines that hold `values`; changes nothing but the time that reading them takes.
#[inline(always)]
pub(crate) fn prefetch(values: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in values.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and never faults; the pointer is into a live slice all the same.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

/// Rows between the one that is packed and the one that is fetched.
const DISTANCE: usize = 8;

/// Part of a matrix that is fetched, or packed, line by line while something else is computed.
#[derive(Default)]
pub(crate) struct Ahead<'a> {
    data: &'a [f32],
    /// Elements from one row to the next.
    stride: usize,
    /// Elements of a row.
    columns: usize,
    /// Start of the current row, and the next line in it.
    row: usize,
    column: usize,
    /// Lines per step.
    lines: usize,
    packing: Option<Packing<'a>>,
}

/// Where lines are packed to: panels of whole lines, one after the other.
struct Packing<'a> {
    to: &'a mut [f32],
    /// Columns of a panel.
    panel: usize,
    /// Elements from a panel to the next.
    length: usize,
    /// Start of the current row in the first panel.
    row: usize,
    /// Where the next line goes to, and its column in its panel.
    at: usize,
    column: usize,
}

impl Packing<'_> {
    #[inline(always)]
    fn pack(&mut self, line: &[f32; LINE]) {
        if let Some(to) = self.to.get_mut(self.at..).and_then(|to| to.first_chunk_mut::<LINE>()) {
            *to = *line;
        }
        (self.at, self.column) = (self.at + LINE, self.column + LINE);
        if self.column == self.panel {
            (self.at, self.column) = (self.at + self.length - self.panel, 0);
        }
    }

    fn next_row(&mut self) {
        self.row += self.panel;
        (self.at, self.column) = (self.row, 0);
    }
}

impl<'a> Ahead<'a> {
    /// `rows` rows of `columns` elements, `stride` apart, to be fetched in `steps` steps.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize, steps: usize) -> Ahead<'a> {
        let data = &data[..data.len().min(rows * stride)];
        let lines = (rows * columns.div_ceil(LINE)).div_ceil(steps.max(1));
        Ahead { data, stride, columns, row: 0, column: 0, lines, packing: None }
    }

    /// Packs what is fetched into panels of `panel` columns: whole lines, and whole panels in `columns`.
    pub(crate) fn into_panels(self, to: &'a mut [f32], panel: usize) -> Ahead<'a> {
        let length = to.len() / self.columns * panel;
        Ahead { packing: Some(Packing { to, panel, length, row: 0, at: 0, column: 0 }), ..self }
    }

    #[inline(always)]
    pub(crate) fn step(&mut self) {
        for _ in 0..self.lines {
            self.line();
        }
    }

    /// Packs what is left.
    pub(crate) fn finish(mut self) {
        while self.packing.is_some() && self.row < self.data.len() {
            self.line();
        }
    }

    #[inline(always)]
    fn line(&mut self) {
        let Some(rest) = self.data.get(self.row + self.column..) else { return };
        match &mut self.packing {
            None => prefetch(&rest[..rest.len().min(1)]),
            Some(packing) => {
                prefetch(rest.get(DISTANCE * self.stride..DISTANCE * self.stride + 1).unwrap_or_default());
                if let Some(line) = rest.first_chunk::<LINE>() {
                    packing.pack(line);
                }
            }
        }
        self.column += LINE;
        if self.column >= self.columns {
            self.column = 0;
            self.row += self.stride;
            if let Some(packing) = &mut self.packing {
                packing.next_row();
            }
        }
    }
}
