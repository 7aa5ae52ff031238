use super::*;
use crate::problem::{BiasAxis, Epilogue, Scale};
use crate::workspace::partition::Partition;

#[test]
fn an_odd_k_needs_copies_of_both_operands_and_an_odd_n_of_the_result() {
    let names = |m, n, k, layout| {
        let problem = Problem::dense(m, n, k, 1, layout, Format::BF16).canonical().problem;
        Packing::each(&problem).map(Packing::names).collect::<Vec<_>>()
    };
    assert_eq!(names(512, 4096, 4096, Layout::NT), [""; 0]);
    assert_eq!(names(512, 4096, 4095, Layout::NT), ["AB", "A"]);
    assert_eq!(names(512, 4095, 4096, Layout::NT), ["BD"]);
    assert_eq!(names(512, 4095, 4095, Layout::NT), ["AB", "ABD", "A"]);
    assert_eq!(names(512, 4095, 4096, Layout::NN), ["B", "BD"]);
    assert_eq!(names(511, 4096, 4096, Layout::TN), ["A"]);
}

#[test]
fn a_d_in_16_bits_with_an_epilogue_is_copied_in_f32() {
    let of = |n, k, format, change: fn(&mut Problem)| {
        let problem = Problem::dense(512, n, k, 1, Layout::NT, format).with(change).canonical().problem;
        (problem, Packing::each(&problem).map(Packing::names).collect::<Vec<_>>())
    };
    let biased = |p: &mut Problem| p.epilogue.bias = Some(BiasAxis::N);
    let added = |p: &mut Problem| {
        p.epilogue = Epilogue::new(0.5, 2.0);
        p.epilogue.c = Some(p.d);
    };
    let in_place = |p: &mut Problem| {
        p.epilogue = Epilogue::new(1.0, 1.0);
        (p.epilogue.c, p.epilogue.in_place) = (Some(p.d), true);
    };
    for format in [Format::F16, Format::BF16] {
        assert_eq!(of(4096, 4096, format, biased).1, ["D"]);
        assert_eq!(of(4096, 4096, format, added).1, ["D"]);
        assert_eq!(of(4096, 4096, format, in_place).1, [""; 0]);
        assert_eq!(of(4096, 4096, format, |_| ()).1, [""; 0]);
        assert_eq!(of(4095, 4096, format, biased).1, ["BD", "D"]);
        assert_eq!(of(4096, 4095, format, biased).1, ["AB", "A", "D", "ABD"]);
        let (odd, _) = of(4095, 4096, format, biased);
        for (packing, n) in
            [(Packing { d: true, ..Packing::default() }, 4095), (Packing { a: false, b: true, d: true }, 4096)]
        {
            let inner = packing.inner(&odd);
            assert_eq!((inner.d.format, inner.n, inner.d.row_stride), (Format::F32, n, 4096));
            assert!(inner.epilogue.is_linear());
            assert_eq!(packing.copies(&odd).d, 512 * 4096 * 4);
            assert_eq!(packing.footprint(&odd).unwrap().element, 4);
        }
        // A copy without an epilogue is in D's format: its product is rounded, and moved.
        let packing = Packing { a: false, b: true, d: true };
        assert_eq!(packing.inner(&of(4095, 4096, format, |_| ()).0).d.format, format);
    }
    assert_eq!(of(4096, 4096, Format::F32, biased).1, [""; 0]);
    let device = DeviceInfo::h100();
    let only_d = Packing { d: true, ..Packing::default() };
    let us = |change| only_d.us(&of(4096, 4096, Format::BF16, change).0, &device);
    let more_us = pipeline::stream_us(512.0 * 4096.0 * 2.0, RATE, &device);
    assert!((us(biased) - us(|_| ()) - more_us).abs() < 1e-9);
}

#[test]
fn blocks_of_gguf_become_bf16() {
    let gguf = |n, change: &dyn Fn(&mut Problem)| {
        let problem = Problem::dense(300, n, 512, 1, Layout::NT, Format::F32).with(|p| p.b.format = Format::Q4K);
        let problem = problem.with(change).canonical().problem;
        Packing::each(&problem).map(|packing| (packing.names(), packing.inner(&problem))).collect::<Vec<_>>()
    };
    let names = |n, change: &dyn Fn(&mut Problem)| -> Vec<String> {
        gguf(n, change).into_iter().map(|(names, _)| names).collect()
    };
    for (names, inner) in gguf(4095, &|_| ()) {
        let formats = [inner.a, inner.b, inner.d].map(|operand| operand.format);
        assert_eq!(formats, [Format::BF16, Format::BF16, Format::F32], "{names}");
        assert_eq!((inner.layout(), inner.k), (Layout::NT, 512));
    }
    assert_eq!(names(4096, &|_| ()), ["AB"]);
    assert_eq!(names(4095, &|_| ()), ["AB", "ABD"]);
    assert_eq!(names(4096, &|p| (p.a.format, p.d.format) = (Format::BF16, Format::BF16)), ["B"]);
    let none: [&dyn Fn(&mut Problem); 3] = [&|p| p.b.pointer_align = 2, &|p| p.b.col_stride = 512 + 32, &|p| {
        (p.a.format, p.d.format) = (Format::F16, Format::F16)
    }];
    for change in none {
        assert_eq!(names(4096, change), [""; 0]);
    }
}

#[test]
fn narrow_weights_become_the_16_bits_of_a() {
    let scale = |n| Some(Scale::of_groups(Format::F8E8M0, 32, n));
    let of = |a: Format, d: Format, [n, k]: [usize; 2], change: &dyn Fn(&mut Problem)| {
        let problem = Problem::narrow([300, n, k], a, Format::F4E2M1, scale(n)).with(|p| p.d.format = d);
        let problem = problem.with(change).canonical().problem;
        Packing::each(&problem).map(|packing| (packing.names(), packing.inner(&problem))).collect::<Vec<_>>()
    };
    for (a, d, n, k, expected, copied) in [
        (Format::BF16, Format::BF16, 4096, 512, &["B"][..], Format::BF16),
        (Format::F16, Format::F32, 4096, 512, &["B"], Format::F16),
        (Format::F32, Format::F32, 4096, 512, &["AB"], Format::BF16),
        (Format::BF16, Format::BF16, 4095, 512, &["B", "BD"], Format::BF16),
        // A K of no whole blocks: lines of A start inside of 16 bytes.
        (Format::BF16, Format::BF16, 4096, 100, &["AB"], Format::BF16),
        (Format::F32, Format::F32, 4096, 100, &["AB"], Format::BF16),
    ] {
        let packings = of(a, d, [n, k], &|_| ());
        assert_eq!(packings.iter().map(|(names, _)| &names[..]).collect::<Vec<_>>(), expected, "{a} {d} {n} {k}");
        for (names, inner) in packings {
            let formats = [inner.a, inner.b, inner.d].map(|operand| operand.format);
            assert_eq!(formats, [copied, copied, d], "{names}");
            assert_eq!((inner.layout(), inner.b.scale), (Layout::NT, None));
            assert!(
                inner.b.align() == 16 && inner.k >= k && inner.k % 8 == if names.contains('A') { 0 } else { k % 8 }
            );
        }
    }
    let none: [&dyn Fn(&mut Problem); 5] = [
        &|p| p.b.col_stride = 512 + 16,
        &|p| p.d.format = Format::F16,
        &|p| p.a.scale = p.b.scale,
        &|p| p.batch = [1, 2],
        &|p| p.b.scale = Some(Scale::of_groups(Format::F64, 32, 4096)),
    ];
    for change in none {
        assert!(of(Format::BF16, Format::BF16, [4096, 512], change).is_empty());
    }
    // Factors are read as well, and a wide group along N is not cut.
    let device = DeviceInfo::h100();
    let time = |scale| {
        Packing { a: false, b: true, d: false }
            .us(&Problem::narrow([300, 4096, 512], Format::BF16, Format::U8, scale), &device)
    };
    let more = pipeline::stream_us(16.0 * 4096.0, 1.0, &device);
    assert!((time(scale(4096)) - time(None) - more / RATE_OF_BLOCKS).abs() < 1e-9);
    let wide = Problem::narrow(
        [300, 20_000, 4096],
        Format::BF16,
        Format::U8,
        Some(Scale::of_blocks(Format::F32, [3000, 128], 4096)),
    );
    let packing = Packing { a: false, b: true, d: false };
    let partition = Partition::new(packing.footprint(&wide), &wide.canonical().problem, 64 << 20);
    assert_eq!(partition, None, "768,000 columns are the least multiple of tiles and factors");
    let partition = Partition::new(packing.footprint(&wide), &wide, 256 << 20).unwrap();
    assert_eq!(partition.columns, 20_000);
}

#[test]
fn what_a_kernel_gets_is_aligned_and_fits_into_the_footprint() {
    for (layout, batch) in [(Layout::NT, 1), (Layout::NN, 3), (Layout::TN, 1), (Layout::TT, 2)] {
        let problem = Problem::dense(77, 515, 333, batch, layout, Format::F16).canonical().problem;
        for packing in Packing::each(&problem) {
            let inner = packing.inner(&problem);
            assert_eq!(inner.layout(), layout);
            let [(_, a), (_, b), _, (_, d)] = inner.alignments();
            let b = if packing.names() == "A" { 16 } else { b }; // for kernels that read any B
            assert_eq!([a, b], [16; 2], "{layout} {}", packing.names());
            assert!(!packing.d || (d == 16 && inner.n == 520));
            let Copies { a, b, d } = packing.copies(&problem);
            let need = packing.footprint(&problem).unwrap().need(&problem);
            assert!(a + b + d <= need.best, "{layout} {}: {} of {}", packing.names(), a + b + d, need.best);
        }
    }
}

/// The launch writes where the sizes of copies say.
#[test]
fn the_copies_of_each_piece_fit_into_the_workspace() {
    let mut pieces = 0;
    for [m, n, k, batch] in
        [[65, 20_001, 4095, 1], [5000, 333, 4095, 3], [3001, 5003, 2047, 1], [7, 131, 77, 500], [1, 9001, 30_001, 2]]
    {
        for layout in [Layout::NT, Layout::NN, Layout::TN, Layout::TT] {
            for format in [Format::BF16, Format::F32] {
                let problem = Problem::dense(m, n, k, batch, layout, format).canonical().problem;
                for (packing, bytes) in
                    Packing::each(&problem).flat_map(|p| [(p, 8 << 20), (p, 64 << 20), (p, 256 << 20)])
                {
                    let Some(partition) = Partition::new(packing.footprint(&problem), &problem, bytes) else {
                        continue;
                    };
                    for piece in partition.pieces(&problem) {
                        let Copies { a, b, d } = packing.copies(&piece.problem);
                        let names = packing.names();
                        assert!(a + b + d <= bytes, "{} of {problem}, {names}, {bytes} bytes", piece.problem);
                        assert!(packing.inner(&piece.problem).k >= k);
                        pieces += 1;
                    }
                }
            }
        }
    }
    assert!(pieces > 500, "{pieces} pieces");
}
