//! Compiles the protobuf services without `protoc`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    // What users' own agents serve, with bounds of its own.
    let files = protox::compile(["proto/labels.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    let files = protox::compile(["proto/tidemill.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .codec_path("crate::bounded::Bounded")
        // In order, so that the same message always has the same bytes.
        .btree_map("resources")
        .btree_map("environment")
        .compile_fds(files)?;
    Ok(())
}
