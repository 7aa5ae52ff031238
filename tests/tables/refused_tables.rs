//! Measured tables and entries that are refused, and with which words.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::internal::tuning::{Among, EntryRefusal, Host, Origin, Refusal, RefusedCounts, Tuning};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::{Error, Format, Layout, Problem};

fn refusal(result: Result<Tuning, Error>) -> (Refusal, String) {
    let error = result.expect_err("the table is good");
    match cause(&error) {
        Some(refusal) => (refusal.clone(), error.to_string()),
        None => panic!("{error:?}"),
    }
}

/// Why a measured table is not used.
fn cause(error: &Error) -> Option<&Refusal> {
    match error {
        Error::Tuning { refusal, .. } => refusal.downcast_ref(),
        _ => None,
    }
}

fn empty(name: &str) -> Tuning {
    Tuning::new(name, Origin::of_this_build(&DeviceInfo::h100()))
}

/// Some kernel of ours.
fn own_kernel() -> &'static KernelDesc {
    KERNELS.iter().find(|k| k.role != Role::Vendor && k.types.a == Format::BF16).unwrap()
}

/// An entry of that kernel, as a file has it.
fn own_entry() -> String {
    let entry = r#"{"dtype":"bf16","layout":"nt","n":64,"k":64,"batch":1,"aligned":true,"epilogue":"none","among":"own","m":[1,4],"kernel":"KERNEL","code":"CODE","gain":1.1}"#;
    entry.replace("KERNEL", own_kernel().name).replace("CODE", own_kernel().code)
}

/// A file with these entries.
fn with_entries(entries: &[&str]) -> String {
    empty("t").to_text().replace("\"entries\": []", &format!("\"entries\": [{}]", entries.join(",")))
}

#[test]
fn every_kind_of_bad_table_is_refused_with_what_to_do_next() {
    let (entry, good_kernel) = (own_entry(), own_kernel().name);
    let good = with_entries(&[&entry]);
    assert_eq!(Tuning::parse("mine.json", &good).unwrap().entries().len(), 1);

    let second = format!("[{},{}]", entry, entry.replace("[1,4]", "[4,8]"));
    let version = format!("\"crate_version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    let cases = [
        ("", "", "is no measured table", ""),
        ("{", "[", "is no measured table", "`tilegemm tune` writes one"),
        ("\"schema\": 2,", "", "missing field `schema`", "`tilegemm tune`"),
        ("\"schema\": 2,", "\"schema\": 1,", "has schema 1, and this version reads 2", "measure it again"),
        (&version, "\"crate_version\": \"0.0.9\"", "was measured with candle-tilegemm 0.0.9", "measure it again"),
        ("\"gpu\"", "\"gpus\"", "missing field `gpu`", "`tilegemm tune`"),
        ("\"code\"", "\"codes\"", "missing field `code`", "`tilegemm tune`"),
        (good_kernel, "cublas_bf16_nt", "is none of our own kernels", "correct it"),
        (
            "\"gain\":1.1",
            "\"gain\":1.01",
            "M 1 to 4 of Mx64x64 nt bf16, own kernels: its gain is 1.01",
            "measure it again",
        ),
        ("[1,4]", "[0,4]", "expected 1 or more as its first M", "correct it"),
        ("[1,4]", "[5,4]", "no less as its last", "correct it"),
        ("[1,4]", "[1]", "is no measured table", "line"),
        ("\"bf16\"", "\"int8\"", "unknown variant `int8`", "`tilegemm tune`"),
        (&format!("[{entry}]"), &second, "M 4 to 8 of Mx64x64 nt bf16, own kernels: its rows overlap", "M 1 to 4"),
    ];
    for (from, to, what, remedy) in cases {
        let text = if from.is_empty() { String::new() } else { good.replacen(from, to, 1) };
        assert_ne!(text, good, "nothing to replace: {from}");
        let (_, message) = refusal(Tuning::parse("mine.json", &text));
        assert!(message.starts_with("mine.json ") && message.contains(what), "no '{what}' in: {message}");
        assert!(message.contains(remedy), "no '{remedy}' in: {message}");
    }

    let (reason, message) = refusal(Tuning::load("no/such/table.json".as_ref()));
    assert!(matches!(reason, Refusal::Unreadable(_)) && message.contains("TILEGEMM_TUNING"), "{message}");
}

#[test]
fn an_entry_whose_kernel_has_changed_is_refused_alone() {
    let (entry, kernel) = (own_entry(), own_kernel());
    let old = entry.replace(kernel.code, "0123456789abcdef").replace("[1,4]", "[5,8]");
    let gone = entry.replace(kernel.name, "sm90_gemm").replace("[1,4]", "[9,16]");
    let table = Tuning::parse("mine.json", &with_entries(&[&gone, &entry, &old])).unwrap();
    assert_eq!(table.entries().iter().map(|entry| (entry.m, entry.kernel)).collect::<Vec<_>>(), [([1, 4], kernel)]);
    let refused: Vec<_> = table.refused().iter().map(|entry| (entry.m, entry.refusal.clone())).collect();
    let changed = EntryRefusal::OtherCode {
        kernel: kernel.name.into(),
        have: "0123456789abcdef".into(),
        need: kernel.code.into(),
    };
    assert_eq!(refused, [([5, 8], changed), ([9, 16], EntryRefusal::UnknownKernel { kernel: "sm90_gemm".into() })]);
    for (entry, words) in table.refused().iter().zip([kernel.code, "there is no kernel sm90_gemm"]) {
        let text = entry.to_string();
        assert!(
            text.starts_with("the entry for M ") && text.contains("Mx64x64 nt bf16") && text.contains(words),
            "{text}"
        );
    }

    assert_eq!(table.refused_counts(), RefusedCounts { unknown_kernel: 1, other_code: 1, unfit: 0 });
    let words = "2 entries are refused: 1 of kernels whose code has changed, 1 of kernels that are gone";
    assert_eq!(table.refused_counts().to_string(), words);
    assert_eq!(
        RefusedCounts { unknown_kernel: 1, ..Default::default() }.to_string(),
        "1 entry is refused: 1 of kernels that are gone"
    );

    // The others answer, and those do not.
    let at = |m| table.lookup(&Problem::dense(m, 64, 64, 1, Layout::NT, Format::BF16), Among::Own).map(|entry| entry.m);
    assert_eq!([4, 5, 9].map(at), [Some([1, 4]), None, None]);
    let written = table.to_text();
    assert!(written.contains("[1,4]") && !written.contains("[5,8]") && !written.contains("[9,16]"), "{written}");
    let renewed = table.clone().renew("again.json", table.origin().clone());
    assert!(renewed.refused_counts().is_none() && renewed.entries() == table.entries());
    let device = DeviceInfo::h100();
    let dispatcher = Dispatcher::hypothetical(device).without_tuning().with_tuning(table).unwrap();
    assert_eq!(dispatcher.tables().used().count(), 1);

    // What makes no sense refuses the table, whatever its kernel is.
    for wrong in [gone.replace("1.1", "0.9"), old.replace("[5,8]", "[4,8]")] {
        let (reason, message) = refusal(Tuning::parse("mine.json", &with_entries(&[&entry, &wrong])));
        assert!(matches!(reason, Refusal::Entry { .. }), "{message}");
    }
}

/// A kernel that is gone, other code, a configuration that the kernel does not have, and a kernel of another type: a program says so once.
#[test]
fn entries_that_no_product_gets_are_counted_and_told_in_a_line() {
    let dispatcher = || Dispatcher::hypothetical(DeviceInfo::h100());
    let problem = Problem::dense(48, 4096, 4096, 1, Layout::NT, Format::BF16);
    let with_choice = |k: &&KernelDesc| k.family == "sm90_few_rows" && k.types == problem.types();
    let kernel = KERNELS.iter().find(with_choice).unwrap();
    let policy = Policy::force(kernel.name).unwrap();
    let legal = dispatcher().without_tuning().plan(&problem, policy).unwrap().config.to_string();
    let key = r#""layout":"nt","n":4096,"k":4096,"batch":1,"aligned":true,"epilogue":"none","among":"all""#;
    let entry = |m: usize, dtype: &str, of: &KernelDesc, config: &str| {
        let (name, code) = (of.name, of.code);
        format!(
            r#"{{"dtype":"{dtype}",{key},"m":[{m},{m}],"kernel":"{name}","config":"{config}","code":"{code}","gain":1.1}}"#
        )
    };
    let good = entry(48, "bf16", kernel, &legal);
    let entries = [
        good.clone(),
        entry(49, "bf16", kernel, "1x3_k77"),
        entry(50, "f16", kernel, &legal),
        entry(51, "bf16", kernel, &legal).replace(kernel.name, "sm90_gone"),
        entry(52, "bf16", kernel, &legal).replace(kernel.code, "0123456789abcdef"),
    ];
    let with = |entries: &[String]| {
        let text = with_entries(&entries.iter().map(String::as_str).collect::<Vec<_>>());
        dispatcher().with_tuning(Tuning::parse("mine.json", &text).unwrap()).unwrap()
    };
    let all = with(&entries);
    let counts = "4 entries are refused: 1 of kernels whose code has changed, 1 of kernels that are gone, 2 of kernels that cannot run them here";
    assert_eq!(all.complaints(), [format!("of mine.json, {counts}; `tilegemm doctor` names them")]);
    let table = all.tables().used().next().unwrap();
    let skipped = all.skipped(table);
    let said: Vec<(usize, String)> = skipped.iter().map(|entry| (entry.m[0], entry.to_string())).collect();
    for (m, words) in [(49, "cannot run it as 1x3_k77"), (50, kernel.name), (51, "no kernel sm90_gone"), (52, "hash")] {
        assert!(said.iter().any(|(of, text)| *of == m && text.contains(words)), "M {m}, {words}: {said:#?}");
    }
    assert!(with(&entries[..1]).complaints().is_empty(), "{good}");
    assert!(dispatcher().complaints().is_empty(), "the tables that ship are no user's");
}

#[test]
fn a_table_of_another_machine_is_refused() {
    let device = DeviceInfo::h100();
    let origin = Origin { driver: "580.159.04".into(), cuda: "13.5".into(), ..Origin::of_this_build(&device) };
    let table = Tuning::new("t", origin);
    let host = |driver: Option<&str>, cuda: Option<&str>| Host {
        driver: driver.map(String::from),
        cuda: cuda.map(String::from),
        ..Host::hypothetical(&device)
    };
    for (driver, cuda) in [(None, None), (Some("580.65.06"), Some("13.5")), (Some("580.159.04"), None)] {
        table.verify(&host(driver, cuda)).unwrap_or_else(|error| panic!("{driver:?} {cuda:?}: {error}"));
    }
    let verify = |host| refusal(table.verify(&host).map(|()| table.clone()));
    let cases = [
        (verify(host(Some("590.1"), None)), "was measured with a driver 580, and this is 590"),
        (verify(host(None, Some("13.4"))), "kernels that CUDA 13.5 compiled, here it was 13.4"),
        (
            verify(Host::hypothetical(&DeviceInfo::h200())),
            "was measured on an NVIDIA H100 80GB HBM3, and this is an NVIDIA H200",
        ),
    ];
    for ((_, message), expected) in cases {
        assert!(message.contains(expected) && message.contains("tilegemm tune"), "no '{expected}' in: {message}");
    }
    let error = Dispatcher::hypothetical(DeviceInfo::a100()).with_tuning(table).unwrap_err();
    assert!(matches!(cause(&error), Some(Refusal::Gpu { .. })), "{error}");
}
