//! Fuzzes policy files, test files and selectors.

use std::path::Path;

use comity_fuzz::fuzz;
use comity_policy::{
    DeviceFacts, SourceFile, compile_selector, load, read_directory, read_test_files, read_tests, render_problems,
};

#[test]
fn policy_files() {
    let examples = read_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap();
    let all = examples.iter().map(|file| file.text.trim_end()).collect::<Vec<_>>().join("\n---\n") + "\n";
    fuzz!("policy", vec![all.into_bytes()], |bytes: &[u8]| {
        let Ok(text) = String::from_utf8(bytes.to_vec()) else { return false };
        // The problems are shown.
        load(vec![SourceFile { path: "all.yaml".into(), text }]).map_err(|found| render_problems(&found)).is_ok()
    });
}

#[test]
fn test_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let bundle = load(read_directory(&folder).unwrap()).unwrap();
    let files = read_test_files(&folder).unwrap();
    let valid = files.into_iter().map(|file| file.text.into_bytes()).collect();
    fuzz!("policy_test", valid, move |bytes: &[u8]| {
        let Ok(text) = String::from_utf8(bytes.to_vec()) else { return false };
        let file = SourceFile { path: "a.test.yaml".into(), text };
        // The problems are shown.
        read_tests(&[file], &bundle).map_err(|found| render_problems(&found)).is_ok()
    });
}

#[test]
fn selectors() {
    let valid = [
        "device.memoryMiB >= 80000 && device.architecture in [\"Hopper\", \"Blackwell\"]",
        "device.productName.matches(\"^NVIDIA-(H|A)100\") || !(device.memoryMiB < 40000)",
        "device.memoryMiB > 1 ? true : device.driverMajor > 550",
        "device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('550.0.0'))",
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('80G').add(1)) >= 0",
        "device.brand.split('e', 2).lastIndexOf(device.sharing.find('m[a-z]*')) == [3, 1].min() - 2",
    ];
    fuzz!("selector", valid.map(|text| text.as_bytes().to_vec()).to_vec(), |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let Ok(selector) = compile_selector(text).map_err(|problem| problem.to_string()) else { return false };
        let _ = selector.matches(&DeviceFacts::default());
        true
    });
}
