# install.mk: installs the program, the starter's shards and its vocabulary. The program looks for them in
# ../share/train_gpt_tost, relative to its folder.
PREFIX ?= /usr/local

install: train_gpt_tost
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/share/train_gpt_tost"
	install train_gpt_tost "$(DESTDIR)$(PREFIX)/bin"
	install -m 644 data/starter/* "$(DESTDIR)$(PREFIX)/share/train_gpt_tost"

.PHONY: install
