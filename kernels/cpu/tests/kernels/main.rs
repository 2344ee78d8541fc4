//! Every kernel, under every set of instructions that the processor has, against sums in double precision. All operands end at,
//! or start behind, a page that nobody may touch.

mod attention;
mod elements;
mod guarded;
mod products;
