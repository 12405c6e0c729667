//! The messages and calls of the protocol as its definition has them, for what concerns all of them alike.

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Its path in a request.
    pub path: &'static str,
    /// The message that is its request.
    pub request: &'static str,
    /// Whether the client sends any number of them.
    pub streams: bool,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message, by its index in the table.
    Message(usize),
    /// A string, or bytes.
    Bytes,
    /// A number.
    Number,
    /// Any number of numbers.
    Numbers,
}

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// What it holds.
    pub kind: Kind,
}

include!(concat!(env!("OUT_DIR"), "/shape.rs"));

/// All calls.
#[must_use]
pub fn methods() -> &'static [Method] {
    METHODS
}

/// The fields of a message.
#[must_use]
pub fn fields(message: &str) -> Option<&'static [Field]> {
    let at = MESSAGES.binary_search_by_key(&message, |(name, _)| *name);
    at.ok().map(|at| MESSAGES[at].1)
}

/// The fields of the message with this index.
#[must_use]
pub fn fields_at(index: usize) -> &'static [Field] {
    MESSAGES.get(index).map_or(&[], |(_, fields)| fields)
}
