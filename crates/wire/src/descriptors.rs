//! Messages and calls from the definition of the protocol, for code that treats all of them alike.

/// Call of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Path in a request.
    pub path: &'static str,
    /// Name of the request message.
    pub request: &'static str,
    /// Whether the client sends a stream of requests.
    pub streams: bool,
}

/// Kind of the value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Message, by its index in the table.
    Message(usize),
    /// String or bytes.
    Bytes,
    /// Number.
    Number,
    /// Repeated numbers.
    Numbers,
}

/// Field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Number of the field.
    pub number: u32,
    /// Kind of its value.
    pub kind: FieldKind,
}

include!(concat!(env!("OUT_DIR"), "/shape.rs"));

/// Returns all calls.
#[must_use]
pub fn methods() -> &'static [Method] {
    METHODS
}

/// Returns the fields of a message; `None` for an unknown message.
#[must_use]
pub fn fields(message: &str) -> Option<&'static [Field]> {
    let at = MESSAGES.binary_search_by_key(&message, |(name, _)| *name);
    at.ok().map(|at| MESSAGES[at].1)
}

/// Returns the fields of the message with this index; none for an unknown index.
#[must_use]
pub fn fields_at(index: usize) -> &'static [Field] {
    MESSAGES.get(index).map_or(&[], |(_, fields)| fields)
}

#[cfg(test)]
mod tests {
    /// Protocol files with their names.
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
    /// First words of declarations whose comments stand above them.
    const BLOCKS: [&str; 4] = ["service", "rpc", "message", "enum"];
    /// First words of lines that need no comment.
    const PLAIN: [&str; 5] = ["syntax", "package", "reserved", "oneof", "}"];

    /// Returns the declarations of a protocol file that have no comment, or share their line with another declaration. A field or a
    /// value may have its comment at the end of its line.
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
    fn protocol_items_all_have_comments() {
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
    fn comment_scan_reports_each_uncommented_item() {
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
