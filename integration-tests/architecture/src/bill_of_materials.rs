//! The bill of materials: every package of `Cargo.lock`, in the format CycloneDX 1.5.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// The packages whose programs institutions install.
const SHIPPED: [&str; 3] = ["comity-agent", "comity-broker", "comity-cli"];

/// SHA-256 checksums in a `Cargo.lock`, by name and version. Packages of the workspace have none.
#[must_use]
pub fn checksums(lock: &str) -> BTreeMap<(String, String), Option<String>> {
    let quoted = |line: &str, key: &str| -> Option<String> {
        Some(line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"')?.to_owned())
    };
    let packages = lock.split("[[package]]").skip(1);
    let package = |text: &str| {
        let value = |key: &str| text.lines().find_map(|line| quoted(line, key));
        Some(((value("name")?, value("version")?), value("checksum")))
    };
    packages.filter_map(package).collect()
}

/// Makes the bill of materials of the workspace.
///
/// `metadata` is the answer of `cargo metadata --format-version 1`, and `lock` the text of `Cargo.lock`. A component has
/// the scope `required` if a program that is shipped links it or is built with it, and `excluded` if only tests use it, or
/// if it is in the lock and not in the metadata: then only another platform needs it.
/// The same input gives the same bytes: there is neither a time nor a random serial number.
///
/// # Errors
/// What the metadata lacks.
pub fn bill_of_materials(metadata: &Value, lock: &str) -> Result<Value, String> {
    let list = |value: &Value, key: &str| -> Result<Vec<Value>, String> {
        value[key].as_array().cloned().ok_or_else(|| format!("the metadata has no list {key:?}"))
    };
    let packages = list(metadata, "packages")?;
    let nodes = list(&metadata["resolve"], "nodes")?;
    let checksums = checksums(lock);
    let urls: BTreeMap<&str, String> = packages.iter().map(|package| (text(&package["id"]), url(package))).collect();
    let shipped = shipped(&packages, &nodes);
    let mut components: Vec<Value> = packages
        .iter()
        .map(|package| {
            let key = (text(&package["name"]).to_owned(), text(&package["version"]).to_owned());
            let checksum = checksums.get(&key).cloned().flatten();
            component(package, checksum.as_deref(), shipped.contains(text(&package["id"])))
        })
        .collect();
    let listed: BTreeSet<String> = components.iter().map(|it| text(&it["bom-ref"]).to_owned()).collect();
    let others = checksums.iter().map(|((name, version), checksum)| {
        component(&json!({"name": name, "version": version}), checksum.as_deref(), false)
    });
    components.extend(others.filter(|other| !listed.contains(text(&other["bom-ref"]))));
    components.sort_by_key(|component| text(&component["bom-ref"]).to_owned());
    let mut dependencies: Vec<Value> = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let needs: BTreeSet<&String> = needed(node).filter_map(|id| urls.get(id)).collect();
        let of = urls.get(text(&node["id"])).ok_or("a package of the graph is not listed")?;
        dependencies.push(json!({"ref": of, "dependsOn": needs}));
    }
    dependencies.sort_by_key(|it| text(&it["ref"]).to_owned());
    let version =
        packages.iter().find(|it| text(&it["name"]) == SHIPPED[0]).map_or(Value::Null, |it| it["version"].clone());
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "comity", "version": version, "bom-ref": "comity"}},
        "components": components,
        "dependencies": dependencies,
    }))
}

fn component(package: &Value, checksum: Option<&str>, is_shipped: bool) -> Value {
    let url = url(package);
    let mut component = Map::new();
    component.insert("type".to_owned(), "library".into());
    component.insert("bom-ref".to_owned(), url.clone().into());
    component.insert("name".to_owned(), package["name"].clone());
    component.insert("version".to_owned(), package["version"].clone());
    component.insert("purl".to_owned(), url.into());
    component.insert("scope".to_owned(), if is_shipped { "required" } else { "excluded" }.into());
    if let Some(license) = package["license"].as_str() {
        // Old packages write a slash for OR, which SPDX does not know.
        component.insert("licenses".to_owned(), json!([{"expression": license.replace('/', " OR ")}]));
    }
    if let Some(checksum) = checksum {
        component.insert("hashes".to_owned(), json!([{"alg": "SHA-256", "content": checksum}]));
    }
    component.into()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The package URL.
fn url(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]))
}

/// Ids of the packages that a package needs when it is built or run, without those of its tests.
fn needed(node: &Value) -> impl Iterator<Item = &str> {
    let kinds = |dep: &Value| dep["dep_kinds"].as_array().cloned().unwrap_or_default();
    let deps = node["deps"].as_array().map(Vec::as_slice).unwrap_or_default();
    deps.iter()
        .filter(move |dep| kinds(dep).iter().any(|kind| text(&kind["kind"]) != "dev"))
        .map(|dep| text(&dep["pkg"]))
}

/// Ids of the packages that the shipped programs need.
fn shipped<'a>(packages: &'a [Value], nodes: &'a [Value]) -> BTreeSet<&'a str> {
    let nodes: BTreeMap<&str, &Value> = nodes.iter().map(|node| (text(&node["id"]), node)).collect();
    let roots = packages.iter().filter(|package| SHIPPED.contains(&text(&package["name"])));
    let (mut found, mut left) = (BTreeSet::new(), roots.map(|package| text(&package["id"])).collect::<Vec<_>>());
    while let Some(id) = left.pop() {
        if found.insert(id) {
            left.extend(nodes.get(id).into_iter().flat_map(|node| needed(node)));
        }
    }
    found
}
