//! Compiles the part of etcd's API that benchmarks call, with protox, so that no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=etcd");
    let descriptors = protox::compile(["etcd/rpc.proto"], ["."])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
