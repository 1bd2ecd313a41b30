//! Writes the custom resource definitions into `deploy/crds`.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    std::fs::create_dir_all(&folder)?;
    for (name, definition) in comity_agent_workload::crd::definitions() {
        std::fs::write(folder.join(name), comity_agent_workload::crd::yaml(&definition)?)?;
        println!("wrote deploy/crds/{name}");
    }
    Ok(())
}
