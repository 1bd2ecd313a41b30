//! Prints the bill of materials of this workspace; `scripts/sbom` calls it with the answer of `cargo metadata`.

use std::error::Error;
use std::io::Read as _;

use comity_architecture::bill_of_materials;

fn main() -> Result<(), Box<dyn Error>> {
    let lock = std::env::args().nth(1).ok_or("usage: cargo metadata --format-version 1 | sbom Cargo.lock")?;
    let mut metadata = String::new();
    std::io::stdin().read_to_string(&mut metadata)?;
    let bill = bill_of_materials(&serde_json::from_str(&metadata)?, &std::fs::read_to_string(lock)?)?;
    println!("{}", serde_json::to_string_pretty(&bill)?);
    Ok(())
}
