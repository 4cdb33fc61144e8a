"""What decoded rows show: within one sample, and between samples."""
