//! Descriptors of the messages and calls of the protocol, for code that treats all messages alike.

/// Call of a service of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Path of the call in a request.
    pub path: &'static str,
    /// Name of the call's request message.
    pub request: &'static str,
    /// Whether the client sends a stream of requests.
    pub streams: bool,
}

/// Kind of the value of a message's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// The value is a message, given by its index in the table of messages.
    Message(usize),
    /// The value is a string or bytes.
    Bytes,
    /// The value is a number.
    Number,
    /// The value is a list of numbers.
    Numbers,
}

/// Field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Number of the field in the message.
    pub number: u32,
    /// Kind of the field's value.
    pub kind: FieldKind,
}

include!(concat!(env!("OUT_DIR"), "/shape.rs"));

/// Returns all calls of the protocol.
#[must_use]
pub fn methods() -> &'static [Method] {
    METHODS
}

/// Returns the fields of the message with this name; `None` for an unknown message.
#[must_use]
pub fn fields(message: &str) -> Option<&'static [Field]> {
    let at = MESSAGES.binary_search_by_key(&message, |(name, _)| *name);
    at.ok().map(|at| MESSAGES[at].1)
}

/// Returns the fields of the message with this index; an empty list for an unknown index.
#[must_use]
pub fn fields_at(index: usize) -> &'static [Field] {
    MESSAGES.get(index).map_or(&[], |(_, fields)| fields)
}

#[cfg(test)]
mod tests {
    /// Names and texts of the protocol files.
    const PROTOCOLS: [(&str, &str); 2] = [
        (
            "tidemill.proto",
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/tidemill.proto")),
        ),
        (
            "labels.proto",
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/labels.proto")),
        ),
    ];
    /// Keywords of declarations whose comments must be above them.
    const BLOCKS: [&str; 4] = ["service", "rpc", "message", "enum"];
    /// First words of lines that need no comment.
    const PLAIN: [&str; 5] = ["syntax", "package", "reserved", "oneof", "}"];

    /// Returns the declarations of a protocol file that have no comment, or share their line with another declaration. A field or a value
    /// may have its comment at the end of its line.
    fn uncommented(protocol: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut above = false;
        for (line, number) in protocol.lines().zip(1_u32..) {
            let (code, comment) = line.split_once("//").unwrap_or((line, ""));
            let comment = !comment.trim().is_empty();
            let Some(first) = code.split_whitespace().next() else {
                above = comment;
                continue;
            };
            let block = BLOCKS.contains(&first);
            let commented = above || (comment && !block);
            let alone = code.matches(" = ").count() <= usize::from(!block);
            if !(PLAIN.contains(&first) || commented && alone) {
                found.push(format!("{number}: {}", code.trim()));
            }
            above = false;
        }
        found
    }

    #[test]
    fn every_protocol_declaration_has_comment() {
        for (name, protocol) in PROTOCOLS {
            let found = uncommented(protocol);
            assert!(
                found.is_empty(),
                "{name}: declarations without a comment of their own:\n{}",
                found.join("\n")
            );
        }
    }

    #[test]
    fn comment_check_reports_each_uncommented_declaration() {
        let protocol = "\
            syntax = \"proto3\";\n\
            // A section.\n\
            \n\
            service Bare {\n\
            // Reads a value.\n\
            rpc Read(Key) returns (Value);\n\
            rpc Write(Value) returns (Key);\n\
            }\n\
            // A key.\n\
            message Key {\n\
            uint64 key = 1; // number of the key\n\
            // Name of the key.\n\
            string name = 2;\n\
            string note = 3;\n\
            reserved 4;\n\
            }\n\
            message Value {} // a value\n\
            // State of a value.\n\
            enum State {\n\
            OLD = 0; NEW = 1; // age of the value\n\
            LOST = 2;\n\
            }\n";
        assert_eq!(
            uncommented(protocol),
            [
                "4: service Bare {",
                "7: rpc Write(Value) returns (Key);",
                "14: string note = 3;",
                "17: message Value {}",
                "20: OLD = 0; NEW = 1;",
                "21: LOST = 2;",
            ]
        );
    }
}
