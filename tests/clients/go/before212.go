//go:build before212

package main

// The admin knows no credentials before 2.1.2, and no offset of a pull consumer can be kept.

func administer(given map[string]string) {}

func pullAll(given map[string]string) {}
