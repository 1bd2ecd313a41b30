//! Compiles the `.proto` files with protox, so that no protoc is needed.

use std::path::PathBuf;

use prost::Message as _;

#[path = "build/required_fields.rs"]
mod required_fields;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "comity/v1/types.proto",
        "comity/v1/offers.proto",
        "comity/v1/federation.proto",
        "comity/v1/requests.proto",
        "comity/v1/leases.proto",
        "comity/v1/peerings.proto",
        "comity/v1/policy.proto",
        "comity/v1/watch.proto",
        "comity/v1/audit.proto",
        "comity/v1/raft.proto",
        "comity/v1/agent.proto",
        "comity/raft/v1/transport.proto",
    ];
    println!("cargo:rerun-if-changed=comity");
    println!("cargo:rerun-if-changed=build");
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut public = descriptors.clone();
    public.file.retain(|file| file.package() != "comity.raft.v1");
    std::fs::write(out.join("comity.bin"), public.encode_to_vec())?;
    std::fs::write(out.join("required_fields.rs"), required_fields::generate(&public))?;
    // Entries go from the network into the log as they came, without a copy.
    tonic_prost_build::configure().bytes(".comity.raft.v1.LogEntry.payload").compile_fds(descriptors)?;
    Ok(())
}
