//! Compiles the protobuf services without `protoc`, and generates tables of their messages and calls.

use std::collections::BTreeMap;
use std::fmt::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    // Users' agents serve this protocol, with separate bounds.
    let files = protox::compile(["proto/labels.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    let files = protox::compile(["proto/tidemill.proto"], ["proto"])?;
    let directory = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(directory.join("shape.rs"), shape(&files)?)?;
    tonic_prost_build::configure()
        .codec_path("crate::size_limits::LimitedCodec")
        // Sorted maps give the same message always the same bytes.
        .btree_map("resources")
        .btree_map("environment")
        .compile_fds(files)?;
    Ok(())
}

/// Returns the source code of the tables `MESSAGES` and `METHODS`; see `src/descriptors.rs`.
fn shape(
    files: &tonic_prost_build::FileDescriptorSet,
) -> Result<String, Box<dyn std::error::Error>> {
    const TYPE_MESSAGE: i32 = 11;
    const TYPE_STRING: i32 = 9;
    const TYPE_BYTES: i32 = 12;
    const REPEATED: i32 = 3;
    let mut messages = BTreeMap::new();
    let mut methods = String::new();
    let short = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    for file in &files.file {
        let package = file.package();
        for message in &file.message_type {
            messages.insert(message.name().to_owned(), message);
            for nested in &message.nested_type {
                messages.insert(nested.name().to_owned(), nested);
            }
        }
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{package}.{}/{}", service.name(), method.name());
                let request = short(method.input_type());
                let streams = method.client_streaming();
                write!(
                    methods,
                    "Method {{ path: {path:?}, request: {request:?}, streams: {streams} }},"
                )?;
            }
        }
    }
    let numbers: BTreeMap<&String, usize> = messages.keys().zip(0..).collect();
    let mut text = String::from("pub(crate) static MESSAGES: &[(&str, &[Field])] = &[");
    for (name, message) in &messages {
        write!(text, "({name:?}, &[")?;
        for field in &message.field {
            let kind = match field.r#type.unwrap_or_default() {
                TYPE_MESSAGE => {
                    let of = numbers.get(&short(field.type_name()));
                    format!(
                        "FieldKind::Message({})",
                        of.ok_or("a type of another file")?
                    )
                }
                TYPE_STRING | TYPE_BYTES => "FieldKind::Bytes".into(),
                _ if field.label.unwrap_or_default() == REPEATED => "FieldKind::Numbers".into(),
                _ => "FieldKind::Number".into(),
            };
            write!(
                text,
                "Field {{ number: {}, kind: {kind} }},",
                field.number()
            )?;
        }
        text.push_str("]),");
    }
    write!(
        text,
        "];\npub(crate) static METHODS: &[Method] = &[{methods}];"
    )?;
    Ok(text)
}
