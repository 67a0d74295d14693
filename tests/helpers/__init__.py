"""What several test files share. Import a module by its full name: `from helpers import served`.

- Loaders and batches: loaders, reference (batches of torch's lowerings), cached_loading,
  decoded_caches, dataloader_engine, ray_batches, served (servers in threads), serve_commands
  (`gpupipe serve` in a process), scripted_server, epochs_of_ranks, init_runs, dali_loaders,
  beside_folders (a source and the folder with the same images).
- Images: photographs (real ones), image_files, image_fields, many_fields, image_corpus (every
  format, with _other and _tiff; corpus_table, corpus_process), jpeg_kinds, odd_images.
- Broken images: corrupt_images, cut_jpegs, damaged_scans, mixed_files, png_job.
- Data sets in files: arrays, folders, manifests, record_files, tfrecords, zip_files, lmdb_files,
  served_archives, cache_contents, hub (of Hugging Face, on loopback).
- Steps: every_step, step_examples, odd_steps, augment_draws, distributions, color_differences,
  dali_nodes, kernel_arguments, kernel_variants (the extension, for each processor), color_stages.
- Configs as text: config_texts, pipeline_texts, language_server, code_blocks, browsers.
- Packages and functions of users: plugin, sqlite_plugin, user_functions.
- Processes: forked_python (starts without importing torch again), forks, leftovers.
- Machines: disks (nearly full), broken_machine, fake_gpu, fake_cuda, either_device, sync_waits,
  ray_cluster, ray_disasters.
- Figures known beforehand: made_comparison, lease_tables.
"""
